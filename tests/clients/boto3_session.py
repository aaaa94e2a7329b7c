"""One session of boto3 against an S3 endpoint, told as a line of JSON a call: what it gave, without what differs from run to run.

    boto3_session.py URL TOKEN before-sign|before-send

The token's header is signed (before-sign) or not (before-send). Run against the store itself and through the gate,
it must tell the same story.
"""

import hashlib
import json
import sys
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

URL, TOKEN, HOOK = sys.argv[1:]
BUCKET = "orders"
STORY = []


def client(scheme="http", **settings):
    s3 = boto3.client(
        "s3",
        endpoint_url=URL.replace("http:", scheme + ":"),
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"mode": "standard", "max_attempts": 3}, **settings),
    )

    def add_token(request, **_):
        request.headers["Fencing-Token"] = TOKEN

    s3.meta.events.register(HOOK + ".s3", add_token)
    return s3


def tell(what, call, **arguments):
    try:
        answer = call(**arguments)
    except ClientError as error:
        answer = error.response
    answer = dict(answer)
    meta = answer.pop("ResponseMetadata")
    status, attempts = meta["HTTPStatusCode"], meta["RetryAttempts"]
    fields = {k: v for k, v in meta["HTTPHeaders"].items() if k in ("etag", "content-length", "content-type")}
    if "Body" in answer:
        answer["Body"] = hashlib.sha256(answer["Body"].read()).hexdigest()
    STORY.append([what, status, attempts, fields, json.loads(json.dumps(plain(answer), default=str))])
    return answer


def plain(value):
    """Without times, ids, addresses and the order of lists, which differ from run to run with this store."""
    if isinstance(value, dict):
        left_out = ("LastModified", "UploadId", "Location", "RequestId", "HostId")
        return {key: plain(entry) for key, entry in value.items() if key not in left_out}
    if isinstance(value, list):
        return sorted(map(plain, value), key=lambda entry: json.dumps(entry, sort_keys=True))
    return value


def whole_objects(s3):
    for key in ("small", "with space + plus", "ümlaut/50%25", "a/b/c", "~tilde'(x)!*"):
        tell("put", s3.put_object, Bucket=BUCKET, Key=key, Body=key.encode() * 10)
        tell("get", s3.get_object, Bucket=BUCKET, Key=key)
    metadata = {"user.xdg.origin.url": "http://a.test/?b=c", "note": "two  spaces"}
    tell("put", s3.put_object, Bucket=BUCKET, Key="meta", Body=b"v", Metadata=metadata, ContentType="text/x; a=b")
    tell("head", s3.head_object, Bucket=BUCKET, Key="meta")
    tell("range", s3.get_object, Bucket=BUCKET, Key="small", Range="bytes=3-7")
    tell("large", s3.put_object, Bucket=BUCKET, Key="large", Body=b"0123456789" * 60_000)
    tell("missing", s3.get_object, Bucket=BUCKET, Key="no such key")
    tell("wrong digest", s3.put_object, Bucket=BUCKET, Key="bad", Body=b"v", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")
    tell("bad", s3.head_object, Bucket=BUCKET, Key="bad")


def nothing():
    """On connections of their own: boto3 expects a 100 here too, and misreads what follows a final answer instead."""
    for key in ("empty", "empty too"):
        tell("empty", client().put_object, Bucket=BUCKET, Key=key, Body=b"")


def signed_encoding(s3):
    """Some SDKs sign Accept-Encoding; a proxy that rewrites it breaks each of their calls."""

    def sign_it(request, **_):
        request.headers["Accept-Encoding"] = "identity"

    s3.meta.events.register("before-sign.s3", sign_it)
    tell("signed encoding", s3.put_object, Bucket=BUCKET, Key="encoding", Body=b"v")
    tell("signed encoding", s3.get_object, Bucket=BUCKET, Key="encoding")
    s3.meta.events.unregister("before-sign.s3", sign_it)


def in_parts(s3):
    upload = tell("create", s3.create_multipart_upload, Bucket=BUCKET, Key="parts")["UploadId"]
    parts = []
    for number, size in ((1, 5 * 1024 * 1024), (2, 1000)):
        body = bytes([number]) * size
        part = tell("part", s3.upload_part, Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    tell("list parts", s3.list_parts, Bucket=BUCKET, Key="parts", UploadId=upload)
    complete = {"Bucket": BUCKET, "Key": "parts", "UploadId": upload}
    tell("complete", s3.complete_multipart_upload, MultipartUpload={"Parts": parts}, **complete)
    tell("get", s3.get_object, Bucket=BUCKET, Key="parts")
    upload = tell("create", s3.create_multipart_upload, Bucket=BUCKET, Key="aborted")["UploadId"]
    tell("abort", s3.abort_multipart_upload, Bucket=BUCKET, Key="aborted", UploadId=upload)


def in_trailers():
    """A checksum in a trailer of an aws-chunked body: boto3 does so over TLS alone, so that is what it is told."""
    s3 = client("https", connect_timeout=5)
    sent = []

    def over_http(request, **_):
        request.url = request.url.replace("https:", "http:")
        sent.append(request.headers.get("X-Amz-Trailer"))

    s3.meta.events.register("before-send.s3", over_http)
    for key, body in (("trailer", b"0123456789" * 10_000), ("trailer of nothing", b"")):
        tell("trailer", s3.put_object, Bucket=BUCKET, Key=key, Body=body, ChecksumAlgorithm="CRC32")
        tell("get", s3.get_object, Bucket=BUCKET, Key=key)
    names = [name.decode() if isinstance(name, bytes) else name for name in sent]
    assert names == ["x-amz-checksum-crc32", None] * 2, names


def presigned(s3):
    if HOOK == "before-sign":
        return
    url = s3.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": "presigned +"})
    request = urllib.request.Request(url, b"v", {"Fencing-Token": TOKEN, "Content-Type": ""}, method="PUT")
    with urllib.request.urlopen(request, timeout=20) as answer:
        STORY.append(["presigned", answer.status, answer.headers["ETag"]])


def over_the_bucket(s3):
    tell("copy", s3.copy_object, Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "small"})
    tell("list", s3.list_objects_v2, Bucket=BUCKET)
    tell("list", s3.list_objects_v2, Bucket=BUCKET, Prefix="a/", Delimiter="/", MaxKeys=2)
    tell("delete", s3.delete_object, Bucket=BUCKET, Key="copy")
    both = [{"Key": "meta"}, {"Key": "with space + plus"}]
    tell("delete two", s3.delete_objects, Bucket=BUCKET, Delete={"Objects": both})
    tell("list", s3.list_objects_v2, Bucket=BUCKET)


def main():
    s3 = client()
    whole_objects(s3)
    nothing()
    signed_encoding(s3)
    in_parts(s3)
    in_trailers()
    presigned(s3)
    over_the_bucket(s3)
    for line in STORY:
        print(json.dumps(line, sort_keys=True))


main()
