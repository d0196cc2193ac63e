"""An OpenAI-compatible endpoint whose replies are kept: the same request is never asked twice, and a folder of recorded
replies answers without any endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from stepsieve.data.errors import DataError, require
from stepsieve.data.jsonio import expect, loads
from stepsieve.eval.stagewise.settings import EndpointSettings
from stepsieve.models.checkpoint import write_atomic


class Endpoint:
    """Asks for JSON in a given schema, at temperature 0.

    Attributes:
        asked: replies that were needed, recorded ones too.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        """Raises DataError: no model is named; openai is not installed where an address is given."""
        if not settings.model:
            raise DataError("expected the name of a model", field="endpoint.model")
        self.settings = settings
        self.asked = 0
        self._client: Any = None
        if settings.base_url is not None:
            openai = require("openai", "judges")
            try:
                self._client = openai.OpenAI(base_url=settings.base_url, timeout=settings.timeout)
            except openai.OpenAIError as error:
                raise DataError(f"expected an endpoint that can be asked: {error}", field="endpoint") from None

    def ask(self, system: str, user: str, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The reply, a JSON object. Whether it keeps to the schema is for the caller to check.

        Raises:
            DataError: no reply is recorded and there is no endpoint, it can't be reached, or the reply is no object.
        """
        request = {
            "model": self.settings.model,
            "temperature": 0,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": name, "schema": dict(schema), "strict": False},
            },
        }
        digest = sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS)).hexdigest()
        path = Path(self.settings.cache) / f"{digest}.json"
        self.asked += 1
        if path.exists():
            record = expect(loads(path.read_bytes()), dict, "a recorded reply", str(path))
            text = expect(record.get("reply"), str, "text", f"{path}: reply")
        else:
            text = self._request(request, path)
            write_atomic(path, orjson.dumps({"request": request, "reply": text}, option=orjson.OPT_INDENT_2))
        try:
            reply: dict[str, Any] = expect(loads(text.encode()), dict, "a JSON object", "reply")
        except DataError as error:
            raise error.at(file=path) from None
        return reply

    def _request(self, request: Mapping[str, Any], path: Path) -> str:
        if self._client is None:
            raise DataError("expected a recorded reply, or endpoint.base_url to ask", file=path)
        openai = require("openai", "judges")
        try:
            completion = self._client.chat.completions.create(**request)
        except openai.OpenAIError as error:
            where = self.settings.base_url
            raise DataError(f"expected a reply, found an error: {error}", file=where) from None
        text = completion.choices[0].message.content if completion.choices else None
        return expect(text, str, "a reply with content", "choices[0].message.content")
