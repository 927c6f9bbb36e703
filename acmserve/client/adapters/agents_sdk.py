"""OpenAI's Agents SDK: runs that belong to a session, over Responses or chat completions.

    acm = AcmRuns("http://localhost:8000", "agent-7", "my-model", api="responses", fidelity="reuse")
    await Runner.run(agent, "Hello.", session=SQLiteSession("agent-7"), run_config=acm.config)
    acm.receipts[-1]

Decision: receipts are read from the header of each answer, for the SDK hands on nothing else. That of a streamed answer
names the session alone. Over Responses `acm_of` reads the whole receipt from the closing event of a streamed run.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack

import openai
from agents import Model, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig

from acmserve.client.answers import HeaderReceipt, header_receipt
from acmserve.client.options import AcmOptions, extra_body
from acmserve.client.place import ServerPlace, routing_headers


class AcmRuns:
    """The runs of one session. Agents of a run share it: a sub-agent gets a side thread of its own from the server."""

    def __init__(
        self,
        base_url: str,
        session_id: str,
        model: str,
        *,
        api: Literal["responses", "chat"] = "responses",
        api_key: str | None = None,
        cache_salt: str | None = None,
        **acm: Unpack[AcmOptions],
    ) -> None:
        self.session_id = session_id
        self.receipts: list[HeaderReceipt] = []
        http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [self._note]})
        root = ServerPlace(base_url).root
        self.client = openai.AsyncOpenAI(
            base_url=f"{root}/v1",
            api_key=api_key or "unused",
            default_headers=routing_headers(session_id),
            http_client=http,
        )
        kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
        self.model: Model = kind(model=model, openai_client=self.client)
        self._body = extra_body(session_id, cache_salt, acm)

    @property
    def settings(self) -> ModelSettings:
        """For an agent that has settings of its own: `acm.settings.resolve(ModelSettings(temperature=0))`."""
        return ModelSettings(extra_body=self._body)

    @property
    def config(self) -> RunConfig:
        """For `Runner.run`. Every agent of the run speaks to this server, under this session."""
        return RunConfig(model=self.model, model_settings=self.settings, tracing_disabled=True)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    async def _note(self, response: Any) -> None:
        receipt = header_receipt(response.headers)
        if receipt is not None:
            self.receipts.append(receipt)
