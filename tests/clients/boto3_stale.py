"""A holder that turns stale in the middle of its work, told as a line of JSON a call: what, status, code, retries.

    boto3_stale.py URL
"""

import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

BUCKET = "orders"


def holder(token):
    s3 = boto3.client(
        "s3",
        endpoint_url=sys.argv[1],
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(read_timeout=20),
    )

    def add_token(request, **_):
        request.headers["Fencing-Token"] = str(token)

    s3.meta.events.register("before-sign.s3", add_token)
    return s3


def tell(what, call, **arguments):
    code = None
    try:
        answer = call(Bucket=BUCKET, **arguments)
    except ClientError as error:
        answer = error.response
        code = answer["Error"]["Code"]
    meta = answer["ResponseMetadata"]
    print(json.dumps([what, meta["HTTPStatusCode"], code, meta["RetryAttempts"]]), flush=True)
    return answer


old, new = holder(33), holder(34)
upload = tell("create", old.create_multipart_upload, Key="parts")["UploadId"]
part = {"Key": "parts", "UploadId": upload, "PartNumber": 1, "Body": b"old"}
parts = [{"PartNumber": 1, "ETag": tell("part", old.upload_part, **part)["ETag"]}]
tell("put by old", old.put_object, Key="a", Body=b"old")
tell("put by new", new.put_object, Key="a", Body=b"new")

tell("stale put", old.put_object, Key="a", Body=b"old")
tell("stale put of nothing", old.put_object, Key="a", Body=b"")
tell("stale large put", old.put_object, Key="a", Body=b"o" * 3_000_000)
tell("stale part", old.upload_part, **part)
tell("stale complete", old.complete_multipart_upload, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
tell("stale copy", old.copy_object, Key="b", CopySource={"Bucket": BUCKET, "Key": "a"})
tell("stale delete", old.delete_object, Key="a")
tell("stale delete of a list", old.delete_objects, Delete={"Objects": [{"Key": "a"}]})
tell("stale abort", old.abort_multipart_upload, Key="parts", UploadId=upload)
tell("stale read", old.get_object, Key="a")
tell("put by new", new.put_object, Key="a", Body=b"new again")
