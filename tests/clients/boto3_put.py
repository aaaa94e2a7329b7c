"""One put_object with boto3's own settings. Where it is refused, the code is printed.

    boto3_put.py URL [TOKEN]
"""

import sys

import boto3
from botocore.exceptions import ClientError

s3 = boto3.client(
    "s3",
    endpoint_url=sys.argv[1],
    region_name="us-east-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
)


def add_token(request, **_):
    request.headers["Fencing-Token"] = sys.argv[2]


if sys.argv[2:]:
    s3.meta.events.register("before-send.s3", add_token)
try:
    s3.put_object(Bucket="orders", Key="a", Body=b"v")
except ClientError as error:
    sys.exit(print(error.response["Error"]["Code"]) or 1)
