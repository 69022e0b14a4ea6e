"""An image for containers with the program and the C library that it needs, and nothing else (OCI image layout, one layer)."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

LOADER = "lib64/ld-linux-x86-64.so.2"
LIBRARY_FOLDER = "lib/x86_64-linux-gnu"
MOST_BYTES = 15_000_000
ENTRY = "/usr/bin/torchspy"
SLEEPER = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"


def name(version):
    return f"torchspy-{version}-oci-amd64.tar"


def files_of(program, root):
    """What the image holds, by path: the program, its libraries from a Debian root, and the roots of certificates."""
    dynamic = subprocess.run(["readelf", "--dynamic", program], check=True, text=True, stdout=subprocess.PIPE).stdout
    needed = re.findall(r"Shared library: \[(.+)\]", dynamic)
    files = {ENTRY[1:]: program, LOADER: root / LOADER}
    files |= {f"{LIBRARY_FOLDER}/{name}": root / LIBRARY_FOLDER / name for name in needed if name not in LOADER}
    for path in ["usr/share/doc/libc6/copyright", "etc/ssl/certs/ca-certificates.crt"]:
        files[path] = root / path
    return files


def layer(files):
    """The same bytes for the same files, whenever it is made."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        folders = {str(parent) for path in files for parent in pathlib.PurePath(path).parents} | {"tmp"}
        for folder in sorted(folders - {"."}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for path, file in sorted(files.items()):
            content = pathlib.Path(file).read_bytes()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755 if path in (ENTRY[1:], LOADER) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def make(to, version, program, root):
    """Writes the image, as one archive that docker, podman, skopeo and containerd load."""
    plain = layer(files_of(program, root))
    blobs, packed = {}, gzip.compress(plain, 9, mtime=0)

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def text(value):
        return json.dumps(value, indent=1).encode()

    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [ENTRY], "WorkingDir": "/tmp", "Env": ["PATH=/usr/bin", "HOME=/tmp"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(text(config), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
    }
    entry = {**blob(text(manifest), "manifest.v1+json"), "annotations": {"org.opencontainers.image.ref.name": f"torchspy:{version}"}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    image = to / name(version)
    with tarfile.open(image, "w") as archive:
        for path, content in {"oci-layout": text({"imageLayoutVersion": "1.0.0"}), "index.json": text(index), **blobs}.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    if image.stat().st_size > MOST_BYTES:
        sys.exit(f"error: the image has {image.stat().st_size / 1e6:.2f} MB; at most {MOST_BYTES / 1e6:.0f} are allowed")
    return image


def check(image):
    """Dumps a Python outside of the image from inside, as a container beside the trainer's does."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(image) as archive:
        index = json.load(archive.extractfile("index.json"))

        def blob(descriptor):
            return archive.extractfile("blobs/sha256/" + descriptor["digest"].removeprefix("sha256:"))

        manifest = json.load(blob(index["manifests"][0]))
        with tarfile.open(fileobj=blob(manifest["layers"][0]), mode="r:gz") as content:
            content.extractall(folder, filter="fully_trusted")
        os.mkdir(f"{folder}/proc")
        target = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            target.stdout.readline()
            # The mount ends with the namespace.
            steps = f'mount --rbind /proc {folder}/proc && exec chroot {folder} {ENTRY} dump --pid {target.pid}'
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", steps]
            dump = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout
        finally:
            target.kill()
    if "<module> (<string>:3)" not in dump or "(libc.so.6)" not in dump:
        sys.exit(f"error: the dump from inside of the image lacks frames:\n{dump}")
    print("image: a Python outside of it was dumped from inside")
