"""Changes of sound protobuf messages: of their bytes, or of their fields, so that rules behind the parser see them.

A change adds at most half a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

BYTES_SHARE = 0.3
"""Share of messages whose bytes are changed. Most of them do not parse."""
_SIZES = (1, 64, 257, 5_000, 100_000)
_COPIES = (1, 2, 65, 1_001)
_MAX_COPIED_BYTES = 300_000
_TEXTS: Sequence[str] = (
    "",
    " ",
    "a",
    "\0",
    "a\nb",
    "\u202e",
    "\ud7ff",
    "BTC/USDT.SIM",
    "../x",
    "'; --",
    "1",
    "-1",
    "nan",
)
_REALS = (0.0, -0.0, 1.5, -1.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
_BITS = (0, 1, 7, 31, 32, 53, 62, 63)
_TYPES = FieldDescriptor


def changed(message: Message, random: Random) -> bytes:
    """Return the bytes of a message with one to three changes."""
    if random.random() < BYTES_SHARE:
        return mutated(message.SerializeToString(), random)
    made = type(message)()
    made.CopyFrom(message)
    for _ in range(random.randint(1, 3)):
        _change(random.choice([*_tree(made)]), random)
    return made.SerializeToString()


def mutated(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to four random changes."""
    made = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(made) + 1)
        match random.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << random.randrange(8)
            case 1:
                del made[at : at + random.randint(1, 8)]
            case 2:
                made[at:at] = random.randbytes(random.randint(1, 16))
            case 3:
                made[at:at] = made[at : at + 32]
            case 4:
                del made[at:]
            case _:
                made[at:at] = b"\xff" * random.randint(1, 11)
    return bytes(made)


def _tree(message: Message) -> Iterator[Message]:
    """Yield a message and those in it; of many in one field the first and the last one."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in {id(each): each for each in (value[0], value[-1])}.values() if field.is_repeated else (value,):
            yield from _tree(each)


def _change(message: Message, random: Random) -> None:
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    if not fields:
        return
    field = random.choice(fields)
    if random.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(getattr(message, field.name), field, random)
    elif field.is_repeated:
        _change_repeated(getattr(message, field.name), field, random)
    elif field.message_type is not None:
        value = getattr(message, field.name)
        value.SetInParent()
        _change(value, random)
    else:
        setattr(message, field.name, _value(field, random))


def _change_map(values: Any, field: Any, random: Random) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    if value.message_type is None:
        values[_value(key, random)] = _value(value, random)


def _change_repeated(values: Any, field: Any, random: Random) -> None:
    if field.message_type is not None and values and random.random() < 0.5:
        _change(values[0], random)
        return
    if field.message_type is not None:
        one = values[0] if values else values.add()
        size = one.ByteSize()
    else:
        one = _value(field, random)
        size = len(one.encode()) if isinstance(one, str) else len(one) if isinstance(one, bytes) else 8
    values.extend([one] * min(random.choice(_COPIES), _MAX_COPIED_BYTES // (1 + size)))


def _value(field: Any, random: Random) -> Any:
    """Return a value of a field's type, often one at a border."""
    match field.type:
        case _TYPES.TYPE_STRING:
            return random.choice(_TEXTS) if random.random() < 0.7 else random.choice("aé€𝄞") * random.choice(_SIZES)
        case _TYPES.TYPE_BYTES:
            return random.randbytes(random.choice((0, *_SIZES)))
        case _TYPES.TYPE_BOOL:
            return random.random() < 0.5
        case _TYPES.TYPE_DOUBLE | _TYPES.TYPE_FLOAT:
            return random.choice(_REALS)
    is_unsigned = field.type in (_TYPES.TYPE_UINT32, _TYPES.TYPE_UINT64, _TYPES.TYPE_FIXED32, _TYPES.TYPE_FIXED64)
    is_long = field.type not in (
        _TYPES.TYPE_UINT32,
        _TYPES.TYPE_INT32,
        _TYPES.TYPE_SINT32,
        _TYPES.TYPE_ENUM,
        _TYPES.TYPE_FIXED32,
    )
    top = (1 << ((64 if is_long else 32) - (0 if is_unsigned else 1))) - 1
    near = (1 << random.choice(_BITS)) + random.randint(-2, 2)
    return min(max(near if random.random() < 0.8 or is_unsigned else -near, 0 if is_unsigned else -top - 1), top)
