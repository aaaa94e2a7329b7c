"""One put_object with boto3's own settings.

    boto3_put.py URL [TOKEN]
"""

import sys

import boto3

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
s3.put_object(Bucket="orders", Key="a", Body=b"v")
