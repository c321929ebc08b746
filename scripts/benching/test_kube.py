"""A watch goes on where the server ended it."""

import io
import json
import unittest

from .kube import Watch


def event(kind, uid, version):
    about = {"uid": uid, "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"metadata": about}}).encode() + b"\n"


class Served:
    """What each watch is answered, and what was asked for. After the last one nothing comes: an error."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, method, path):
        return {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"uid": "a"}}]}

    def connect(self):
        return self

    def request(self, method, path):
        self.asked.append(path.rpartition("resourceVersion=")[2])

    def getresponse(self):
        answer = io.BytesIO(b"".join(self.answers.pop(0)))
        answer.status = 200
        return answer


class Watches(unittest.TestCase):
    def test_an_end_is_followed_by_the_next_watch(self):
        served = Served([event("ADDED", "b", 6), event("BOOKMARK", "", 9)], [event("DELETED", "a", 10)], [])
        watch = Watch(served, "/pods")
        watch.wait("only b is left", lambda objects: list(objects) == ["b"])
        with watch.changed:
            watch.changed.wait_for(lambda: watch.failed, 60)
        self.assertEqual(served.asked, ["5", "9", "10", "10"])
        self.assertIsInstance(watch.failed, IndexError)

    def test_an_error_ends_it(self):
        watch = Watch(Served([b'{"type":"ERROR","object":{"code":410}}\n']), "/pods")
        with watch.changed:
            watch.changed.wait_for(lambda: watch.failed, 60)
        self.assertIn("410", str(watch.failed))


if __name__ == "__main__":
    unittest.main()
