"""The cloud core's API, as a client sees it: requests over one connection, and watches with the time of every change."""

import base64
import http.client
import json
import ssl
import threading
import time
from urllib.parse import urlparse

from .wait import DEADLINE_S, TooLate

# The server closes connections over which nothing was asked for a while; one that rested for this long is not used again.
IDLE_S = 5


class Kube:
    def __init__(self, kubeconfig, folder):
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        files = {}
        for name, text in {"ca": cluster["certificate-authority-data"], "certificate": user["client-certificate-data"],
                           "key": user["client-key-data"]}.items():
            files[name] = folder / f"admin.{name}"
            files[name].touch(mode=0o600)
            files[name].write_bytes(base64.b64decode(text))
        self.tls = ssl.create_default_context(cafile=files["ca"])
        self.tls.load_cert_chain(files["certificate"], files["key"])
        self.host = urlparse(cluster["server"])
        self.connection = self.connect()
        self.used = time.monotonic()

    def connect(self):
        return http.client.HTTPSConnection(self.host.hostname, self.host.port, context=self.tls)

    def ask(self, method, path, body=None, content="application/json"):
        if time.monotonic() - self.used > IDLE_S:
            self.connection = self.connect()
        self.connection.request(method, path, body and json.dumps(body), {"Content-Type": content})
        answer = self.connection.getresponse()
        text = answer.read()
        self.used = time.monotonic()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:300]}")
        return json.loads(text)

    def create(self, path, body):
        return self.ask("POST", path, body)

    def merge(self, path, body):
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def scale(self, deployment, replicas):
        return self.merge(f"/apis/apps/v1/namespaces/default/deployments/{deployment}", {"spec": {"replicas": replicas}})

    def delete(self, path):
        return self.ask("DELETE", path)


class Watch:
    """The objects of a kind as they are now, and when each became what it was waited for."""

    def __init__(self, kube, path):
        listed = kube.ask("GET", path)
        self.objects = {item["metadata"]["uid"]: item for item in listed["items"]}
        self.changed = threading.Condition()
        self.failed = None
        self.kube, self.path = kube, path
        self.version = listed["metadata"]["resourceVersion"]
        stream = self.open()
        threading.Thread(target=self.follow, args=[stream], daemon=True).start()

    def open(self):
        connection = self.kube.connect()
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self.version}"
        connection.request("GET", f"{self.path}?{query}")
        stream = connection.getresponse()
        if stream.status != 200:
            raise RuntimeError(f"watching {self.path}: {stream.status}")
        return stream

    def follow(self, stream):
        try:
            while True:
                while line := stream.readline():
                    self.take(json.loads(line))
                # The server ends every watch after a while; the next one goes on where it was.
                stream = self.open()
        except Exception as error:
            with self.changed:
                self.failed = error
                self.changed.notify_all()

    def take(self, event):
        if event["type"] == "ERROR":
            raise RuntimeError(event)
        about = event["object"]["metadata"]
        with self.changed:
            self.version = about["resourceVersion"]
            if event["type"] == "BOOKMARK":
                return
            if event["type"] == "DELETED":
                self.objects.pop(about["uid"], None)
            else:
                self.objects[about["uid"]] = event["object"]
            self.at = time.time()
            self.changed.notify_all()

    def wait(self, what, check, deadline_s=DEADLINE_S):
        """Waits until `check` of all objects is true, and returns when the change came that made it so."""
        end = time.monotonic() + deadline_s
        with self.changed:
            at = time.time()
            while not check(self.objects):
                left = end - time.monotonic()
                if self.failed or left <= 0 or not self.changed.wait(left):
                    raise TooLate(f"still not so after {deadline_s} s: {what}; {self.failed or ''}")
                at = self.at
        return at


def is_ready(thing):
    return condition(thing, "Ready") == "True"


def condition(thing, kind):
    found = [c["status"] for c in thing.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else None


def of_app(objects, app):
    return [pod for pod in objects.values() if pod["metadata"].get("labels", {}).get("app") == app]
