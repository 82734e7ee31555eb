"""What a benchmark asks: fixed texts and fixed lengths, so that two records can be compared. Pure.

A text is never changed: another one gets another name, because records of both are kept side by side.
"""

import hashlib
import json
from typing import NamedTuple


class Scenario(NamedTuple):
    name: str
    about: str
    thinking: bool
    cap: int  # tokens that each reply has, not one more and not one less
    turns: tuple[str, ...]  # what the user says, one after the other

    @property
    def sha256(self) -> str:
        """Of all that makes two measurements the same one."""
        return hashlib.sha256(json.dumps([self.thinking, self.cap, self.turns]).encode()).hexdigest()


_REPORT = """\
Minutes of the maintenance meeting, workshop 4.
The press at line 2 stopped three times in the week: on Monday at 06:40 for 25 minutes, because the light barrier was dirty;
on Wednesday at 13:05 for 70 minutes, because a hydraulic hose had burst; on Friday at 09:15 for 10 minutes, because the
operator had opened the guard. The hose was from the delivery of March, of which eleven are still in store and four are
mounted on other presses. The supplier was asked on Thursday whether others have burst too, and has not answered. Line 3 ran
without a stop, but its scrap rose from 1.2 to 1.9 percent after the change of the coil on Tuesday; the new coil is at the
upper end of its thickness tolerance. The quality department measures it again on Monday. The compressor was serviced as
planned, its next service is due after 4,000 hours. Two of the five fork-lift trucks are waiting for batteries, which come in
the second week of the next month at the earliest, so the night shift lends one of its trucks to the day shift. The fire drill
took six minutes and ten seconds; the exit beside the store was blocked by pallets, as it had been in spring. The works
council asks that stops of more than one hour be told to the shift by message and not by notice. Decided: the light barrier is
cleaned at every change of shift; the four mounted hoses are replaced this week, before line 2 makes the large order; the
store keeps the exit free and marks the floor; the message to the shift is tried for one month. Open: who pays for the hoses,
and whether the coil goes back. The next meeting is on the first Thursday of the month at 14:00 in room 112, and the head of
the store takes part."""

REASONING = Scenario(
    "reasoning",
    "a riddle that needs thought, with thinking on",
    True,
    512,
    (
        "Four colleagues, Ada, Ben, Cleo and Dan, share an office with four desks in a row, numbered 1 to 4 from the door to the"
        " window. Each has one pet at home (a cat, a dog, a parrot, a tortoise) and drinks one thing in the morning (coffee,"
        " tea, milk, water). Ada sits somewhere to the left of Ben. Who has the dog sits next to who drinks milk. Cleo drinks"
        " tea and does not sit at an end. The owner of the parrot sits at desk 4. Dan has the cat and sits beside the owner of"
        " the tortoise. Whoever sits at desk 1 drinks coffee. Ben does not drink water. Who sits where, with which pet and"
        " which drink? Give the"
        " steps by which you found it, then the whole table, and say whether there is a second solution.",
    ),
)

ANSWER = Scenario(
    "answer",
    "a summary of a page of text, with thinking off",
    False,
    256,
    (
        f"Summarise these minutes for somebody who was not there. Say what happened, what was decided, what is open, and what you"
        f" would ask first.\n\n{_REPORT}",
    ),
)

CONVERSATION = Scenario(
    "conversation",
    "ten turns, each with all that was said before, with thinking off",
    False,
    128,
    (
        "I have a small garden of 40 square metres behind the house, half in the shade. Which vegetables would you plant first?",
        "The soil is heavy clay. What should I do before I plant anything?",
        "I have two hours a week. Which of these plants can I leave out?",
        "Write me a calendar for March to June, one line a week.",
        "It rained for two weeks and slugs ate the lettuce. What now?",
        "Which of the plants may stand beside each other, and which may not?",
        "I would like to collect rain water. How large a barrel do I need, and why?",
        "My neighbour gives me a young apple tree. Where does it go, and what changes in the calendar?",
        "How do I know when the potatoes are ripe?",
        "Sum up all that we have said as a list that I can hang up in the shed.",
    ),
)

SHORT = Scenario("short", "the page of text with a short reply: for a canary of a rollout", False, 64, ANSWER.turns)

SCENARIOS = {one.name: one for one in (REASONING, ANSWER, CONVERSATION, SHORT)}
USUAL = ("reasoning", "answer", "conversation")

WARM_UP = "Reply with the single word READY."

# Questions with one right answer, for "answered k of n" by thinking budget: each needs some thought, none needs knowledge.
QUESTIONS = (
    ("What is 17 times 23? Reply with the number only.", "391"),
    ("A train leaves at 9:50 and takes 2 hours and 25 minutes. When does it arrive? Reply as HH:MM only.", "12:15"),
    ("How many days are there from 3 March to 1 May of the same year? Reply with the number only.", "59"),
    ("Which of these is the third in alphabetical order: pear, apple, plum, cherry, peach? Reply with the word only.", "peach"),
    ("A rectangle is 7 cm longer than it is wide, and its area is 60 square cm. How wide is it? Reply in cm, number only.", "5"),
    ("What is the next number: 2, 6, 12, 20, 30? Reply with the number only.", "42"),
    ("Tom is twice as old as Eva was when Tom was as old as Eva is now. Eva is 18. How old is Tom? Number only.", "24"),
    ("What is the sum of all whole numbers from 1 to 60? Reply with the number only.", "1830"),
)
ANSWER_TOKENS = 64  # beyond the thinking budget
