"""OCI images as files, the same bytes for the same content."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field

# Of every file in a layer and in an archive. Layers do not have the time of the commit: one whose files are the same
# keeps its digest, and no node fetches it again.
EPOCH = 0

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass
class Image:
    """One image for one kind of machine."""

    platform: dict
    run: dict
    created: str
    layer: bytes


@dataclass
class Archive:
    """An OCI image layout in a tar."""

    blobs: dict = field(default_factory=dict)

    def write(self, name, images, target):
        """Writes an archive of an image. For several kinds of machines the name leads to an index of them."""
        entries = [self.add(image) for image in images]
        if len(entries) > 1:
            document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
            entry = self.blob(INDEX, text(document))
        else:
            entry = entries[0]
        entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
        files = {"index.json": text(index), "oci-layout": text({"imageLayoutVersion": "1.0.0"}), **self.blobs}
        new = target.with_suffix(".new")
        with tarfile.open(new, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path, content in sorted(files.items()):
                info = tarfile.TarInfo(path)
                info.size, info.mtime, info.mode = len(content), EPOCH, 0o644
                archive.addfile(info, io.BytesIO(content))
        new.replace(target)

    def add(self, image):
        config = {
            "created": image.created, **image.platform, "os": "linux", "config": image.run,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(image.layer).hexdigest()}"]},
            "history": [{"created": image.created, "created_by": "images/build"}],
        }
        manifest = {
            "schemaVersion": 2, "mediaType": MANIFEST, "config": self.blob(CONFIG, text(config)),
            "layers": [self.blob(LAYER, gzip.compress(image.layer, 9, mtime=EPOCH))],
        }
        return self.blob(MANIFEST, text(manifest)) | {"platform": {"os": "linux", **image.platform}}

    def blob(self, kind, content):
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def layer(root, owners=None):
    """A file system as a tar whose bytes depend on nothing but its content. Everything is root's, except the paths of
    `owners`, which are private to somebody else."""
    owners = owners or {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = owners.get(info.name, 0)
            info.uname = info.gname = ""
            info.mtime = EPOCH
            info.mode = mode(info) if info.name not in owners else 0o700
            if info.islnk():
                # Which of two hard links is the first depends on nothing we control.
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            if info.isreg():
                with path.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)
    return buffer.getvalue()


def mode(info):
    """Readable by all and writable by the owner, executable where it was: whatever the builder's umask."""
    if info.name == "tmp":
        return 0o1777
    if info.isdir() or info.issym():
        return 0o755
    return (info.mode & 0o6111) | 0o644


def text(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
