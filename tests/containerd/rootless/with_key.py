"""with_key.py NAME COMMAND ...: runs a command in a session with a key that is seen by nobody outside of that session."""

import ctypes
import os
import platform
import sys

ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
JOIN_SESSION_KEYRING, SETPERM = 1, 5
SESSION_KEYRING = -3
# All, for whoever has it, and nothing for its user.
POSSESSOR_ALL = 0x3F000000

kernel = ctypes.CDLL(None, use_errno=True).syscall


def ask(*arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    answer = kernel(*words)
    if answer < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    return answer


name, *command = sys.argv[1:]
ask(KEYCTL, JOIN_SESSION_KEYRING, 0)
key = ask(ADD_KEY, b"user", name.encode(), b"secret", 6, SESSION_KEYRING)
ask(KEYCTL, SETPERM, key, POSSESSOR_ALL)
os.execvp(command[0], command)
