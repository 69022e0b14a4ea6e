"""Azurite, Microsoft's server of Azure Blob Storage for tests, on this machine, behind one that fails as it is asked to
(faulty_server.py).

Prints its address once it answers, and ends with its standard input. GET /_state says what the container has (length and
SHA-256 of each object).

usage: azure_server.py AZURITE CONTAINER    AZURITE is azurite-blob's script, which node runs
"""

import base64
import ctypes
import datetime
import functools
import hashlib
import hmac
import http.client
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree

from faulty_server import serve

# Azurite's own (https://learn.microsoft.com/azure/storage/common/storage-connect-azurite).
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# Headers that are a connection's and not a request's.
HOP = {"connection", "keep-alive", "transfer-encoding"}
PR_SET_PDEATHSIG, SIGKILL = 1, 9


def start(script):
    """Starts Azurite, which ends with this process. Returns its host and port."""
    process = subprocess.Popen(
        ["node", script, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0),
    )
    for line in process.stdout:
        if "successfully listens on http://" in line:
            return line.rsplit("/", 1)[1].strip()
    raise SystemExit("Azurite did not start")


class Forward:
    """Asks Azurite. Names of hosts are no part of what Azure's keys sign."""

    def __init__(self, host):
        self.host = host

    def ask(self, method, path, body=b"", headers=()):
        connection = http.client.HTTPConnection(self.host)
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer, answer.read()

    def __call__(self, environ, start_response):
        names = (name for name in environ if name.startswith("HTTP_"))
        headers = {name[5:].replace("_", "-").lower(): environ[name] for name in names}
        if environ.get("CONTENT_TYPE"):
            headers["content-type"] = environ["CONTENT_TYPE"]
        headers = {name: value for name, value in headers.items() if name not in HOP}
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        answer, data = self.ask(environ["REQUEST_METHOD"], environ["RAW_URI"], body, headers)
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
        start_response(f"{answer.status} {answer.reason}", kept)
        return [data]

    def make_container(self, name):
        """Makes a container that can be read without a key."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-blob-public-access": "container", "x-ms-date": now, "x-ms-version": "2023-11-03"}
        named = "".join(f"{name}:{value}\n" for name, value in headers.items())
        # Of the twelve lines of other headers none has a value, not even the length of an empty body.
        signed = "PUT" + "\n" * 12 + named + f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        answer, data = self.ask("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
        if answer.status != 201:
            raise SystemExit(f"no container: {answer.status} {data}")

    def stored(self, container):
        _, listed = self.ask("GET", f"/{ACCOUNT}/{container}?restype=container&comp=list")
        objects = {}
        for name in xml.etree.ElementTree.fromstring(listed).iterfind("Blobs/Blob/Name"):
            _, data = self.ask("GET", f"/{ACCOUNT}/{container}/{urllib.parse.quote(name.text)}")
            objects[f"{container}/{name.text}"] = [len(data), hashlib.sha256(data).hexdigest()]
        return {"objects": objects}


def main():
    _, script, container = sys.argv
    azurite = Forward(start(script))
    azurite.make_container(container)
    serve(azurite, lambda: azurite.stored(container))


main()
