"""An OpenAI-compatible endpoint, through the official client, with a cache before it.

The client itself tries again after lost connections, timeouts, 408, 409, 429 and 5xx, later each time, or when
``Retry-After`` says. What comes back as something else than a completion is asked for again here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from stepsieve.data.errors import DataError, require
from stepsieve.eval.llm import cache
from stepsieve.eval.llm.cost import Usage, estimate

if TYPE_CHECKING:
    from stepsieve.eval.llm.cache import Cache

Message = Mapping[str, str]
"""``{"role", "content"}``."""

NO_KEY = "none"
"""What is sent where a base URL is given and no key: endpoints of one's own seldom ask for one."""
GARBLED = 3
"""How often a request is sent that is answered with something else than a completion."""


class NoReply(Exception):
    """An endpoint did not answer one request, after all tries, or refuses this request."""


@dataclass(frozen=True)
class Access:
    """How an endpoint is reached.

    Attributes:
        base_url: up to and with ``/v1``; None: the one of the client.
        key: the bearer key; None: the one that the client finds in the environment.
        retries: how often the client tries again. timeout: seconds of one try.
    """

    base_url: str | None = None
    key: str | None = None
    retries: int = 8
    timeout: float = 300.0


@dataclass(frozen=True)
class Reply:
    """The text of a completion and what it took.

    ``kept`` says that it came from the cache, and took nothing now. Of a request that occurs again the usage is empty.
    """

    text: str
    usage: Usage
    kept: bool = False


class Kept:
    """Requests with a cache before them. Of equal requests at the same time one is sent, and all get its reply."""

    def __init__(self, replies: Cache) -> None:
        self._replies = replies
        self._asking: dict[str, asyncio.Future[Reply]] = {}
        self._seen: set[str] = set()

    async def reply(self, request: Mapping[str, Any], send: Callable[[], Awaitable[Reply]]) -> Reply:
        """The reply to a request: the kept one, or what ``send`` gives, kept before it is returned.

        Raises:
            NoReply, DataError: as ``send`` does.
        """
        name = cache.key(request)
        again = name in self._seen
        self._seen.add(name)
        known = self._replies.get(name)
        if known is not None:
            reply = Reply(known["text"], Usage(**known["usage"]), kept=True)
        else:
            if name not in self._asking:
                self._asking[name] = asyncio.ensure_future(self._sent(name, send))
                self._asking[name].add_done_callback(lambda _: self._asking.pop(name, None))
            reply = await asyncio.shield(self._asking[name])
        return replace(reply, usage=Usage()) if again else reply

    async def _sent(self, name: str, send: Callable[[], Awaitable[Reply]]) -> Reply:
        reply = await send()
        self._replies.put(name, {"text": reply.text, "usage": asdict(reply.usage)})
        return reply

    async def settle(self) -> None:
        """Wait for what is on its way, so that no reply that was paid for is lost."""
        await asyncio.gather(*self._asking.values(), return_exceptions=True)


class Endpoint:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(self, model: str, access: Access, replies: Cache, parameters: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            replies: where replies are kept.
            parameters: what each request says beside model and messages, such as ``{"temperature": 0}``.

        Raises:
            DataError: the openai client is not installed, or there is no key.
        """
        self._openai = openai = require("openai", "judges")
        self._refused = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)
        self.model = model
        self._parameters = dict(parameters or {})
        self._kept = Kept(replies)
        key = access.key or (NO_KEY if access.base_url else None)
        try:
            self._client = self._openai.AsyncOpenAI(
                api_key=key, base_url=access.base_url, max_retries=access.retries, timeout=access.timeout
            )
        except self._openai.OpenAIError:
            raise DataError("expected a key in $OPENAI_API_KEY, or --base-url URL, found neither") from None

    async def ask(self, messages: Sequence[Message]) -> Reply:
        """The reply to a conversation.

        Raises:
            NoReply: none after all tries, or a request that the endpoint refuses, as one that is too long for it.
            DataError: the endpoint refuses every request: a wrong key, address or model.
        """
        body = {**self._parameters, "model": self.model, "messages": list(messages)}
        request = {"url": str(self._client.base_url), **body}
        return await self._kept.reply(request, lambda: self._send(body))

    async def close(self) -> None:
        """Wait for what is on its way, and close the connections."""
        await self._kept.settle()
        await self._client.close()

    async def _send(self, body: Mapping[str, Any]) -> Reply:
        started = time.monotonic()
        for _ in range(GARBLED):
            try:
                completion = await self._client.chat.completions.create(**body)
            except self._refused as error:
                raise refused(error, self._client.base_url) from None
            except (self._openai.APIResponseValidationError, ValueError):
                continue
            except self._openai.OpenAIError as error:
                raise NoReply(said(error)) from None
            except TypeError as error:
                raise DataError(f"expected parameters that the client takes: {error}") from None
            reply = _reply(completion, body["messages"], time.monotonic() - started)
            if reply is not None:
                return reply
        raise NoReply("what comes back is no completion")


def _reply(completion: Any, asked: Sequence[Message], seconds: float) -> Reply | None:
    """What a completion says; None where it is none. The client doesn't check what it is given."""
    try:
        text, counted = completion.choices[0].message.content or "", completion.usage
        if not isinstance(text, str):
            return None
        if counted is None:
            prompt = sum(estimate(message["content"]) for message in asked)
            return Reply(text, Usage(1, prompt, 0, estimate(text), seconds, estimated=1))
        details = counted.prompt_tokens_details
        kept = (details.cached_tokens if details else None) or 0
        return Reply(text, Usage(1, int(counted.prompt_tokens), int(kept), int(counted.completion_tokens), seconds))
    except (AttributeError, IndexError, TypeError, ValueError):
        return None


def refused(error: Exception, url: object) -> DataError:
    """What ends a run: no request would fare better."""
    return DataError(f"the endpoint refuses every request: {said(error)}", file=url)


def said(error: Exception) -> str:
    """One line of what went wrong, and why."""
    cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
    return " ".join(f"{error}{cause}".split())[:300]
