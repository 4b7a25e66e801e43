"""One Realtime session as the server side of the protocol sees it.

The event shapes are those of OpenAI's published Realtime reference, in its GA names and in the
beta names that some self-hosted servers still use (`NAMES` is the one table of differences).
`Session.handle` takes a client event and says the answers through `say`; speech is found by
energy; an answer is one of the recordings that the server was given, in turn, so that whoever
hears it can compare it with the file. The server keeps the conversation as the protocol tells it
to: an item that is truncated forgets what lies behind the cut.
"""

import asyncio
import base64
import copy
import itertools

from pcm import FORMATS, PCM16, SpeechDetector, resample

# What the beta called what has another name since.
NAMES = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "conversation.item.added": "conversation.item.created",
    "conversation.item.done": None,
}
# Lengths of the audio in successive deltas. The odd ones are no whole number of 20 ms frames.
DELTA_MS = (100, 130, 395, 350, 25, 500)
# What a commit has to hold at least; the reference says the same.
COMMIT_MS_MIN = 100

# Nobody counts tokens here; clients read the fields.
USAGE = {"total_tokens": 30, "input_tokens": 10, "output_tokens": 20,
         "input_token_details": {"text_tokens": 0, "audio_tokens": 10, "cached_tokens": 0},
         "output_token_details": {"text_tokens": 0, "audio_tokens": 20}}

GA_SESSION = {
    "type": "realtime",
    "object": "realtime.session",
    "output_modalities": ["audio"],
    "instructions": "",
    "tools": [],
    "tool_choice": "auto",
    "max_output_tokens": "inf",
    "tracing": None,
    "prompt": None,
    "truncation": "auto",
    "include": None,
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "transcription": None,
            "noise_reduction": None,
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 400,
                "idle_timeout_ms": None,
                "create_response": True,
                "interrupt_response": True,
            },
        },
        "output": {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "voice": "marin",
            "speed": 1.0,
        },
    },
}
BETA_SESSION = {
    "object": "realtime.session",
    "modalities": ["audio", "text"],
    "instructions": "",
    "voice": "alloy",
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "input_audio_transcription": None,
    "turn_detection": GA_SESSION["audio"]["input"]["turn_detection"],
    "tools": [],
    "tool_choice": "auto",
    "temperature": 0.8,
    "max_response_output_tokens": "inf",
}


class Refusal(Exception):
    """A client event that is answered by an `error` event."""

    def __init__(self, message, code, param=None):
        super().__init__(message)
        self.code, self.param = code, param


class Session:
    """State of one connection. `answers` are (words, rate, samples), `say` sends an event."""

    def __init__(self, options, ids, model, say):
        self.options, self.ids, self.say_now = options, ids, say
        self.beta = options.names == "beta"
        self.config = copy.deepcopy(BETA_SESSION if self.beta else GA_SESSION)
        self.config |= {"id": self.id("sess"), "model": model}
        self.turns = itertools.count()
        self.items, self.last_item = {}, None
        # Which item each stands behind.
        self.previous = {}
        # Milliseconds of audio that an assistant's item holds.
        self.audio_ms = {}
        self.response = None
        self.speed = options.speed
        # Samples since the last commit, and in all.
        self.input_samples = self.position = 0
        self.ears = self.ears_for = None
        self.ears_offset = 0
        self.spoken_item = None
        self.heard = None
        self.set_formats()

    def id(self, kind):
        return f"{kind}_{next(self.ids):06}"

    # -- what the session is configured to ---------------------------------------------------

    def audio(self, way):
        return {} if self.beta else self.config["audio"][way]

    def turn_detection(self):
        return (self.config if self.beta else self.audio("input"))["turn_detection"]

    def transcribes(self):
        name = "input_audio_transcription" if self.beta else "transcription"
        return (self.config if self.beta else self.audio("input"))[name] is not None

    def set_formats(self):
        def named(way):
            if self.beta:
                name = self.config[f"{way}_audio_format"]
            else:
                name = self.audio(way)["format"]["type"]
            if name not in FORMATS:
                raise Refusal(f"Invalid value: '{name}'.", "invalid_value", "session.audio")
            return FORMATS[name]

        self.input_format, self.output_format = named("input"), named("output")
        turns = self.turn_detection()
        wanted = turns and (self.input_format.rate_hz, turns.get("silence_duration_ms", 400))
        if wanted != self.ears_for:
            self.ears_for = wanted
            self.ears = SpeechDetector(wanted[0], silence_ms=wanted[1]) if wanted else None
            self.ears_offset = self.position

    # -- saying things -----------------------------------------------------------------------

    async def say(self, kind, **fields):
        name = NAMES.get(kind, kind) if self.beta else kind
        if name is not None:
            await self.say_now({"type": name, "event_id": self.id("event"), **fields})

    async def start(self):
        await self.say("session.created", session=self.config)

    async def refuse(self, refusal, event_id=None):
        error = {"type": "invalid_request_error", "code": refusal.code, "message": str(refusal),
                 "param": refusal.param, "event_id": event_id}
        await self.say("error", error=error)

    # -- client events -----------------------------------------------------------------------

    async def handle(self, event):
        event_id = event.get("event_id")
        try:
            kind = event.get("type")
            if not isinstance(kind, str):
                raise Refusal("Missing required parameter: 'type'.", "missing_required_parameter")
            handler = HANDLERS.get(kind)
            if handler is None:
                raise Refusal(f"Invalid value: '{kind}'.", "invalid_value", "type")
            await handler(self, event)
        except Refusal as refusal:
            await self.refuse(refusal, event_id)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            await self.refuse(Refusal(f"Invalid event: {error!r}", "invalid_value"), event_id)

    async def session_update(self, event):
        update = event["session"]
        if not self.beta and update.get("type") != "realtime":
            raise Refusal("Missing required parameter: 'session.type'.",
                          "missing_required_parameter", "session.type")
        before = copy.deepcopy(self.config)
        merge(self.config, update)
        try:
            self.set_formats()
        except Refusal:
            self.config = before
            raise
        await self.say("session.updated", session=self.config)

    async def append(self, event):
        data = base64.b64decode(event["audio"], validate=True)
        if len(data) % self.input_format.sample_bytes:
            raise Refusal("Audio is not a whole number of samples.", "invalid_value", "audio")
        samples = self.input_format.decode(data)
        self.input_samples += len(samples)
        self.position += len(samples)
        if self.heard is not None:
            self.heard.extend(samples)
        for what, at in self.ears.feed(samples) if self.ears else ():
            at_ms = (self.ears_offset + at) * 1000 // self.input_format.rate_hz
            await (self.speech_started if what == "started" else self.speech_stopped)(at_ms)

    async def speech_started(self, at_ms):
        turns = self.turn_detection() or {}
        padding_ms = turns.get("prefix_padding_ms", 300)
        self.spoken_item = self.id("item")
        await self.say("input_audio_buffer.speech_started",
                       audio_start_ms=max(0, at_ms - padding_ms), item_id=self.spoken_item)
        if turns.get("interrupt_response", True):
            await self.cancel_active("turn_detected")

    async def speech_stopped(self, at_ms):
        item = self.spoken_item or self.id("item")
        await self.say("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=item)
        await self.commit_as(item)
        if (self.turn_detection() or {}).get("create_response", True):
            await self.respond({})

    async def commit(self, _event):
        if self.input_samples * 1000 < COMMIT_MS_MIN * self.input_format.rate_hz:
            raise Refusal("Error committing input audio buffer: buffer too small.",
                          "input_audio_buffer_commit_empty")
        await self.commit_as(self.id("item"))

    async def commit_as(self, item_id):
        self.input_samples = 0
        await self.say("input_audio_buffer.committed",
                       previous_item_id=self.last_item, item_id=item_id)
        content = {"type": "input_audio", "transcript": None}
        await self.add_item({"id": item_id, "role": "user", "content": [content]})
        if self.transcribes():
            await self.say("conversation.item.input_audio_transcription.completed",
                           item_id=item_id, content_index=0, transcript=self.options.understood,
                           usage={"type": "duration", "seconds": 1})

    async def clear(self, _event):
        self.input_samples = 0
        await self.say("input_audio_buffer.cleared")

    async def add_item(self, fields, previous=None):
        item = {"object": "realtime.item", "type": "message", "status": "completed", **fields}
        previous = previous or self.last_item
        self.items[item["id"]] = item
        self.previous[item["id"]] = previous
        self.last_item = item["id"]
        await self.say("conversation.item.added", previous_item_id=previous, item=item)
        if item["status"] == "completed":
            await self.say("conversation.item.done", previous_item_id=previous, item=item)

    async def create_item(self, event):
        item = {"id": self.id("item"), **event["item"]}
        await self.add_item(item, event.get("previous_item_id"))

    def known_item(self, event):
        item = self.items.get(event["item_id"])
        if item is None:
            raise Refusal(f"Item with item_id '{event['item_id']}' not found.",
                          "item_not_found", "item_id")
        return item

    async def delete_item(self, event):
        del self.items[self.known_item(event)["id"]]
        await self.say("conversation.item.deleted", item_id=event["item_id"])

    async def retrieve_item(self, event):
        await self.say("conversation.item.retrieved", item=self.known_item(event))

    async def truncate(self, event):
        item, end_ms = self.known_item(event), event["audio_end_ms"]
        if item["role"] != "assistant" or not isinstance(end_ms, int) or end_ms < 0:
            raise Refusal("Only assistant audio can be truncated, at whole milliseconds.",
                          "invalid_value", "audio_end_ms")
        length_ms = self.audio_ms.get(item["id"], 0)
        if end_ms > length_ms:
            raise Refusal(f"Audio content of {length_ms}ms is already shorter than {end_ms}ms",
                          "invalid_value", "audio_end_ms")
        self.audio_ms[item["id"]] = end_ms
        await self.say("conversation.item.truncated", item_id=item["id"],
                       content_index=event.get("content_index", 0), audio_end_ms=end_ms)

    # -- answers -----------------------------------------------------------------------------

    async def create_response(self, event):
        await self.respond(event.get("response") or {})

    async def respond(self, wanted):
        if self.response:
            raise Refusal("Conversation already has an active response in progress: "
                          f"{self.response.id}.", "conversation_already_has_active_response")
        self.response = Response(self, wanted)
        self.response.task = asyncio.create_task(self.response.run())

    async def cancel(self, event):
        if not self.response or event.get("response_id") not in (None, self.response.id):
            raise Refusal("Cancellation failed: no active response found",
                          "response_cancel_not_active")
        await self.cancel_active("client_cancelled")

    async def cancel_active(self, reason):
        response, self.response = self.response, None
        if response:
            await response.cancel(reason)

    async def close(self):
        response, self.response = self.response, None
        if response:
            response.task.cancel()
            await asyncio.gather(response.task, return_exceptions=True)


class Response:
    """One answer on its way out: bursts of audio, faster than it can be heard."""

    def __init__(self, session, wanted):
        self.session = session
        self.id, self.item_id = session.id("resp"), session.id("item")
        self.words, rate_hz, samples = session.options.answers[
            next(session.turns) % len(session.options.answers)]
        modalities = wanted.get("output_modalities") or wanted.get("modalities")
        configured = session.config.get("output_modalities") or session.config.get("modalities")
        self.is_spoken = "audio" in (modalities or configured)
        self.format = session.output_format
        self.samples = resample(samples, rate_hz, self.format.rate_hz)
        self.sent = 0
        self.item = {"id": self.item_id, "role": "assistant", "status": "in_progress",
                     "content": []}
        self.metadata = wanted.get("metadata")
        self.task = None

    def place(self):
        return {"response_id": self.id, "item_id": self.item_id, "output_index": 0}

    def summary(self, status, details=None):
        output = [] if status == "in_progress" else [self.session.items[self.item_id]]
        return {"object": "realtime.response", "id": self.id, "status": status,
                "status_details": details, "output": output, "metadata": self.metadata,
                "conversation_id": "conv_1", "usage": USAGE if output else None}

    async def run(self):
        say = self.session.say
        await say("response.created", response=self.summary("in_progress"))
        await self.session.add_item(self.item)
        self.item = self.session.items[self.item_id]
        await say("response.output_item.added", response_id=self.id, output_index=0,
                  item=self.item)
        part = {"type": "audio", "transcript": ""}
        if not self.is_spoken:
            part = {"type": "text", "text": ""}
        await say("response.content_part.added", **self.place(), content_index=0, part=part)
        await (self.speak() if self.is_spoken else self.write())
        await self.finish("completed", None)
        self.session.response = None

    async def write(self):
        for word in self.words.split():
            await self.session.say("response.output_text.delta", **self.place(), content_index=0,
                                   delta=word + " ")
        await self.session.say("response.output_text.done", **self.place(), content_index=0,
                               text=self.words)

    async def speak(self):
        say, rate_hz = self.session.say, self.format.rate_hz
        words = iter(self.words.split())
        for length_ms in itertools.cycle(DELTA_MS):
            if self.sent >= len(self.samples):
                break
            if (word := next(words, None)) is not None:
                await self.transcribe(word + " ")
            piece = self.samples[self.sent : self.sent + length_ms * rate_hz // 1000]
            self.sent += len(piece)
            self.session.audio_ms[self.item_id] = self.sent * 1000 // rate_hz
            delta = base64.b64encode(self.format.encode(piece)).decode()
            await say("response.output_audio.delta", **self.place(), content_index=0, delta=delta)
            await asyncio.sleep(len(piece) / rate_hz / self.session.speed)
        for word in words:
            await self.transcribe(word + " ")

    async def transcribe(self, text):
        await self.session.say("response.output_audio_transcript.delta", **self.place(),
                               content_index=0, delta=text)

    async def cancel(self, reason):
        if self.task is not asyncio.current_task():
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self.item_id not in self.session.items:
            await self.session.add_item(self.item)
        await self.finish("cancelled", {"type": "cancelled", "reason": reason})

    async def finish(self, status, details):
        say, item = self.session.say, self.session.items[self.item_id]
        item["status"] = "completed" if status == "completed" else "incomplete"
        if self.is_spoken:
            item["content"] = [{"type": "output_audio", "transcript": self.words}]
            part = {"type": "audio", "transcript": self.words}
            await say("response.output_audio.done", **self.place(), content_index=0)
            await say("response.output_audio_transcript.done", **self.place(), content_index=0,
                      transcript=self.words)
        else:
            item["content"] = [{"type": "output_text", "text": self.words}]
            part = {"type": "text", "text": self.words}
        await say("response.content_part.done", **self.place(), content_index=0, part=part)
        await say("conversation.item.done",
                  previous_item_id=self.session.previous[self.item_id], item=item)
        await say("response.output_item.done", response_id=self.id, output_index=0, item=item)
        await say("response.done", response=self.summary(status, details))


def merge(config, update):
    """Takes an update over, leaf by leaf, as `session.update` is defined."""
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            merge(config[key], value)
        else:
            config[key] = value


HANDLERS = {
    "session.update": Session.session_update,
    "input_audio_buffer.append": Session.append,
    "input_audio_buffer.commit": Session.commit,
    "input_audio_buffer.clear": Session.clear,
    "conversation.item.create": Session.create_item,
    "conversation.item.delete": Session.delete_item,
    "conversation.item.retrieve": Session.retrieve_item,
    "conversation.item.truncate": Session.truncate,
    "response.create": Session.create_response,
    "response.cancel": Session.cancel,
}
