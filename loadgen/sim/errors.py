"""The error object of the OpenAI API."""

from collections.abc import Mapping

import msgspec


class ApiError(Exception):
    """A request that is refused: a status and an error object, with further headers of the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        kind: str = "BadRequestError",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.kind = status, message, param, kind
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})
