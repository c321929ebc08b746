"""A machine's serial console on this terminal."""

import os
import select
import socket
import sys
import termios
import tty

LEAVE = b"\x1d"


def converse(folder):
    """Until Ctrl-] is typed or the machine goes off."""
    os.chdir(folder)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("serial")
    own = sys.stdin.fileno()
    before = termios.tcgetattr(own)
    tty.setraw(own)
    try:
        while True:
            ready, _, _ = select.select([connection, own], [], [])
            if connection in ready:
                if not (data := connection.recv(4096)):
                    return 0
                os.write(sys.stdout.fileno(), data)
            if own in ready:
                data = os.read(own, 1024)
                if not data or LEAVE in data:
                    return 0
                connection.sendall(data)
    finally:
        termios.tcsetattr(own, termios.TCSADRAIN, before)
