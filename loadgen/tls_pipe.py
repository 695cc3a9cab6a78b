"""TLS over byte buffers, so that the socket below stays ours and keeps its kernel stamps."""

import asyncio
import errno
import socket
import ssl

READ_BYTES = 16_384
"""Of a read: a larger buffer costs more than it saves, as it is made anew for each token."""


class TlsPipe:
    """TLS over byte buffers, so that the socket below stays ours."""

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.closed = False

    async def handshake(self, sock: socket.socket) -> None:
        """Raises ssl.SSLError or OSError."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            finally:
                if outgoing := self._outgoing.read():  # also the alert that tells the server why we left
                    await loop.sock_sendall(sock, outgoing)
            if done:
                return
            data = await loop.sock_recv(sock, READ_BYTES)
            if not data:
                raise OSError(errno.ECONNRESET, "the server closed the connection during the TLS handshake")
            self._incoming.write(data)

    def encrypt(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> list[bytes]:
        """The plain text of every record that `data` completes; sets `closed` at the end of the stream."""
        self._incoming.write(data)
        plain: list[bytes] = []
        try:
            while piece := self._tls.read(READ_BYTES):
                plain.append(piece)
            self.closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.closed = True
        return plain
