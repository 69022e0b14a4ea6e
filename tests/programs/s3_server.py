"""An S3 server (moto) on this machine that fails as it is asked to (faulty_server.py).

Prints its address once it answers, and ends with its standard input. GET /_state says what the buckets have (length and
SHA-256 of each object), and how many uploads have parts and have not ended.

usage: s3_server.py [--tls CERTIFICATE] [--google] BUCKET
    --tls       writes the certificate to trust into that file
    --google    answers requests of Google's XML protocol, which is that of S3 but for names of headers
"""

import argparse
import hashlib

from faulty_server import serve
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app

# moto finds the service that is meant by this.
AWS = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Google:
    """Headers of Google's XML protocol for those of S3
    (https://cloud.google.com/storage/docs/xml-api/reference-headers)."""

    def __init__(self, server):
        self.server = server

    def __call__(self, environ, start_response):
        environ["HTTP_AUTHORIZATION"] = AWS
        # Zero: there must be no such object yet.
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        return self.server(environ, start_response)


def stored():
    """What the buckets have."""
    objects, uploads = {}, 0
    for account in s3_backends.values():
        for backend in account.values():
            for bucket in backend.buckets.values():
                uploads += sum(bool(upload.parts) for upload in bucket.multiparts.values())
                for name, key in bucket.keys.items():
                    objects[f"{bucket.name}/{name}"] = [len(key.value), hashlib.sha256(key.value).hexdigest()]
    return {"objects": objects, "uploads": uploads}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tls", metavar="CERTIFICATE")
    parser.add_argument("--google", action="store_true")
    parser.add_argument("bucket")
    arguments = parser.parse_args()
    server = DomainDispatcherApplication(create_backend_app)
    s3_backends["123456789012"]["aws"].create_bucket(arguments.bucket, "us-east-1")
    serve(Google(server) if arguments.google else server, stored, arguments.tls)


main()
