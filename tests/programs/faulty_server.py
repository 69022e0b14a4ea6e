"""What servers of object storage in tests share: they fail as they are asked to.

With faults, each request draws one, from a fixed seed: `error` is answered by 500 and not done; `lost` is done, and the
connection is cut before the answer; `cut` is neither done nor answered; `short` cuts the answer to a GET in its middle;
`slow` waits before it is done; with `outage` nothing is answered.

POST /_faults?error=0.2&slow=0.1    sets shares of requests anew
GET /_state                         prints how many requests there were of each kind, and what the server itself counts
"""

import collections
import datetime
import json
import random
import socket
import ssl
import sys
import threading
import time
import urllib.parse

from werkzeug.serving import WSGIRequestHandler, make_server

KINDS = ["outage", "error", "lost", "cut", "short", "slow"]
SLOW_SECONDS = 0.3


class Faults:
    def __init__(self, server, stored):
        self.server = server
        self.stored = stored
        self.lock = threading.Lock()
        self.random = random.Random(7)
        self.shares = {}
        self.drawn = collections.Counter()

    def draw(self):
        with self.lock:
            at = self.random.random()
            for kind in KINDS:
                at -= self.shares.get(kind, 0.0)
                if at < 0:
                    self.drawn[kind] += 1
                    return kind
            self.drawn["none"] += 1
            return None

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"] in ("/_faults", "/_state"):
            return self.control(environ, start_response)
        with self.lock:
            self.drawn[environ["REQUEST_METHOD"]] += 1
        kind = self.draw()
        if kind in ("cut", "outage"):
            return self.cut(environ)
        if kind == "error":
            start_response("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        if kind == "slow":
            time.sleep(SLOW_SECONDS)
        if kind == "lost":
            b"".join(self.server(environ, lambda *_: None))
            return self.cut(environ)
        if kind == "short" and environ["REQUEST_METHOD"] == "GET":
            return self.short(environ, start_response)
        return self.server(environ, start_response)

    def cut(self, environ):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError

    def short(self, environ, start_response):
        body = b"".join(self.server(environ, start_response))
        yield body[: len(body) // 2]
        self.cut(environ)

    def control(self, environ, start_response):
        with self.lock:
            if environ["REQUEST_METHOD"] == "POST":
                query = urllib.parse.parse_qsl(environ["QUERY_STRING"])
                self.shares = {kind: float(share) for kind, share in query}
                self.random.seed(7)
            body = json.dumps({"requests": self.drawn, **self.stored()}).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass

    def log_error(self, *_):
        pass


def certify(path):
    """Writes a certificate of localhost that signs itself, and returns what a server needs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    with open(path, "wb") as file:
        file.write(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    with open(f"{path}.key", "wb") as file:
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write(key.private_bytes(*form))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, f"{path}.key")
    return context


def serve(application, stored, certificate=None):
    """Prints the address, and serves a WSGI application until whoever started it has ended.

    `stored` returns what GET /_state says besides. With TLS the certificate to trust is written into the file."""
    context = certify(certificate) if certificate else None
    faults = Faults(application, stored)
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=Handler, ssl_context=context)
    print(f"https://localhost:{server.server_port}" if context else f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
