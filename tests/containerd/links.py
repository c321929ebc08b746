"""An image with links, and files of an owner that others cannot read, on top of another one: ARCHIVE OUT PATH=TARGET...
PATH@OWNER..."""

import hashlib
import io
import json
import sys
import tarfile

NAME = "images.edgehold.dev/links:1"
LINKS = dict(word.split("=", 1) for word in sys.argv[3:] if "=" in word)
OWNERS = dict(word.split("@", 1) for word in sys.argv[3:] if "=" not in word)
# Only the machine's root may set it.
ROOTS = {"SCHILY.xattr.trusted.edgehold": "x"}

with tarfile.open(sys.argv[1]) as archive:
    files = {member.name.removeprefix("./"): archive.extractfile(member).read() for member in archive if member.isfile()}


def blob(content, media):
    digest = hashlib.sha256(content).hexdigest()
    files[f"blobs/sha256/{digest}"] = content
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}


def read(descriptor):
    return json.loads(files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")])


def add(archive, name, **fields):
    info = tarfile.TarInfo(name)
    content = fields.pop("content", b"")
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))


layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as archive:
    for name, target in LINKS.items():
        add(archive, name, type=tarfile.SYMTYPE, linkname=target)
    for name, owner in OWNERS.items():
        number = int(owner)
        add(archive, name, uid=number, gid=number, mode=0o6600, pax_headers=ROOTS, content=b"owned\n")

found = json.loads(files["index.json"])["manifests"][0]
while "index" in found["mediaType"] or "list" in found["mediaType"]:
    found = read(found)["manifests"][0]
manifest = read(found)
config = read(manifest["config"])
top = blob(layer.getvalue(), "application/vnd.oci.image.layer.v1.tar")
config["rootfs"]["diff_ids"].append(top["digest"])
manifest["layers"].append(top)
manifest["config"] = blob(json.dumps(config).encode(), manifest["config"]["mediaType"])
root = blob(json.dumps(manifest).encode(), found["mediaType"])
root["annotations"] = {"io.containerd.image.name": NAME}
files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [root]}).encode()
with tarfile.open(sys.argv[2], "w") as archive:
    for name, content in files.items():
        add(archive, name, content=content)
