"""What the voice agent knows: a few phrases, and an answer to each in sentences.

A sentence is synthesised, played and counted as a whole, so they are short.
"""

import datetime
import random

HOURS = ("twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
         "eleven")
COUNT = [f"{word}." for word in
         ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")]
STORY = [
    "Once upon a time there was a nymph whose name was Syrinx.",
    "She lived in the hills, and she wanted to be left alone.",
    "One day the god of the shepherds saw her, and ran after her.",
    "She came to a river and could not cross it.",
    "So she asked the water to hide her, and it turned her into reeds.",
    "The god sighed, and the wind in the reeds answered him with a soft, clear sound.",
    "He cut them and bound them together, and made the first flute of them.",
    "And that is how a voice that nobody could hold came to be heard everywhere.",
]
GREETING = ["Hello.", "Ask me what time it is, to count to ten, or to tell you a story."]
GOOD_BYE = ["Good bye."]
HELP = ["I did not understand.", "You can ask me what time it is, to count to ten, or to tell you "
        "a story."]


class Cut:
    """Where an answer was broken off: `reply` of the agent, None when none was."""

    def __init__(self, reply=None):
        self.reply, self.played_ms = reply, 0


def time_of_day(_cut):
    now = datetime.datetime.now()
    hour = HOURS[now.hour % 12]
    if now.minute == 0:
        return [f"It is {hour} o'clock."]
    return [f"It is {now.minute} {'minute' if now.minute == 1 else 'minutes'} past {hour}."]


def day(_cut):
    return [datetime.datetime.now().strftime("Today is %A, the %d of %B.").replace(" 0", " ")]


def go_on(cut):
    rest = cut.reply.rest(cut.played_ms) if cut.reply else []
    return ["As I was saying.", *rest] if rest else ["There is nothing to go on with."]


SKILLS = {
    "hello": lambda _: ["Hello!", "What can I do for you?"],
    "who are you": lambda _: ["I am a very small voice agent.", "I live behind Syrinx."],
    "what time is it": time_of_day,
    "what day is it": day,
    "count to ten": lambda _: COUNT,
    "tell me a story": lambda _: STORY,
    "flip a coin": lambda _: [random.choice(["Heads.", "Tails."])],
    "go on": go_on,
    "thank you": lambda _: ["You are welcome."],
    "good bye": lambda _: GOOD_BYE,
    # Whoever says so has been obeyed by then: speech interrupts.
    "stop": lambda _: [],
}
PHRASES = list(SKILLS)


def answer(words, cut):
    """Sentences in answer to what was said or written; none when silence is the answer."""
    plain = "".join(c for c in words.lower() if c.isalpha() or c == " ")
    plain = " ".join(plain.split()).replace("goodbye", "good bye")
    return SKILLS.get(plain, lambda _: HELP)(cut)
