"""What one call costs, in whole numbers.

Knows: rates in pico-dollars (10^-12 $) of one token, bands by the length of the prompt, and how a usage is billed.
Does not know: whose price it is, or from when on (book.py).

A cost is summed in pico-dollars and rounded once, to nano-dollars, half up. So 12 tokens at 0.02 $ a million are 240
nano-dollars, and no sum over requests drifts. Nothing here is a float.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from velox.protocol.usage.token_usage import TokenUsage, Units

__all__ = ["LABEL_SEPARATOR", "UNITS", "Band", "Cost", "Price", "UnitRates", "compiled", "free"]

# Between the parts of a name in a record: no part holds it.
LABEL_SEPARATOR: Final = "\x1f"

_PICO_PER_NANO: Final = 1000
_NANO_DIGITS: Final = 9
_MS_PER_HOUR: Final = 3_600_000
_MS_PER_SECOND: Final = 1000


class Cost:
    """Of one call, in pico-dollars."""

    __slots__ = ("pico",)

    def __init__(self, pico: int) -> None:
        self.pico: Final = pico

    def __repr__(self) -> str:
        return f"<Cost {self.dollars()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cost) and self.pico == other.pico

    def __hash__(self) -> int:
        return hash(self.pico)

    @property
    def nano(self) -> int:
        """Return nano-dollars, rounded half up."""
        return (self.pico + _PICO_PER_NANO // 2) // _PICO_PER_NANO

    def dollars(self) -> str:
        """Return dollars as a decimal, of nano-dollars: "0.00000024"."""
        whole, part = divmod(self.nano, 10**_NANO_DIGITS)
        digits = f"{part:0{_NANO_DIGITS}d}".rstrip("0")
        return f"{whole}.{digits}" if digits else str(whole)


class UnitRates(NamedTuple):
    """The rates of what is paid in place of tokens, in pico-dollars; None: not known.

    hour: of an hour of a sound that is read. letter: of a character that is spoken. picture: that is made.
    video_second: of a video that is made. page, annotated_page: that is read. search_unit: of a ranking. least_ms: so
    much of a sound is paid at least.
    """

    hour: int | None = None
    letter: int | None = None
    picture: int | None = None
    video_second: int | None = None
    page: int | None = None
    annotated_page: int | None = None
    search_unit: int | None = None
    least_ms: int = 0

    def cost(self, units: Units | None) -> Cost | None:
        """Return what these units cost; None: the one that is paid for is not told, or one of them has no rate."""
        if units is None:
            return None
        sound, pages = units.sound_ms, units.pages
        annotated = units.annotated_pages or 0
        if sound is not None:
            sound = max(sound, self.least_ms)
        counts = (
            (sound, self.hour, _MS_PER_HOUR),
            (units.letters, self.letter, 1),
            (units.pictures, self.picture, 1),
            (units.video_ms, self.video_second, _MS_PER_SECOND),
            (None if pages is None else max(0, pages - annotated), self.page, 1),
            (annotated if annotated and pages is not None else None, self.annotated_page, 1),
            (units.search_units, self.search_unit, 1),
        )
        told = [(n, rate, per) for n, rate, per in counts if n is not None]
        pico = 0
        for n, rate, per in told:
            if n and rate is None:
                return None
            pico += (n * (rate or 0) + per // 2) // per
        return Cost(pico) if any(rate is not None for _, rate, _ in told) else None


class Band(NamedTuple):
    """The rates for prompts of more than `above` tokens. Pico-dollars of one token, search or request.

    None: not known, so that a call with any of that kind has no known cost; of reasoning: it costs as other output.
    pictures_only: of an answer that is nothing but pictures, where image_output is not known. units: what has them is
    paid by nothing else; None: it is paid by tokens or calls.
    """

    above: int
    input: int
    output: int | None
    cached: int | None
    written: int | None
    written_1h: int | None
    audio_input: int | None
    audio_cached: int | None
    audio_output: int | None
    image_input: int | None
    image_output: int | None
    reasoning: int | None
    web_search: int | None
    request: int
    image_cached: int | None
    pictures_only: int | None
    units: UnitRates | None = None


class Price:
    """What calls of one model cost, at one upstream, in one tier, now. source: where it stands, for people.

    label: version and source, as records name it. regional_percent: see the constructor.
    """

    __slots__ = ("_bands", "_biller", "_first", "label", "regional_percent", "source", "version")

    def __init__(
        self,
        bands: tuple[Band, ...],
        source: str,
        version: str,
        *,
        biller: str | None = None,
        regional_percent: int = 100,
    ) -> None:
        """bands: by `above`, the first above -1. version: of the table or file, for the record of a call.

        biller: whose bill, where a reply tells it, counts before the rates; without bands it is all that counts.
        regional_percent: of the rates, what tokens cost where the call was kept within a region.
        """
        assert bands[0].above < 0 if bands else biller, "a price without a first band"
        self._first: Final = bands[0] if bands else None
        self._bands: Final = bands
        self.source: Final = source
        self.version: Final = version
        self.label: Final = f"{version}{LABEL_SEPARATOR}{source}"
        self._biller: Final = biller
        self.regional_percent: Final = regional_percent

    def __repr__(self) -> str:
        return f"<Price {self.source}>"

    @property
    def bands(self) -> tuple[Band, ...]:
        """Return the rates by the length of the prompt; none: only a reply can tell."""
        return self._bands

    @property
    def is_free(self) -> bool:
        """Tell whether calls cost nothing, whatever they take."""
        return self._first is _FREE

    def is_billed(self, usage: TokenUsage) -> bool:
        """Tell whether a call costs what its reply says that the vendor takes."""
        return usage.bill is not None and usage.bill.biller == self._biller

    def cost(self, usage: TokenUsage) -> Cost | None:
        """Return what a call cost; None: its tokens are not known, or not all of them, or a kind of them has no rate.

        The whole prompt decides the band, and the band all rates, those of the cache among them. Parts that together
        are more than the whole are cut to it.
        """
        prompt, answer, bill = usage.input, usage.output, usage.bill
        if bill is not None and bill.biller == self._biller:
            return Cost(bill.pico)
        band = self._first
        if band is not None and band.units is not None:
            return band.units.cost(usage.units)
        if prompt is None or answer is None or usage.has_others or band is None:
            return Cost(0) if self.is_free and not usage.has_others else None
        if len(self._bands) > 1:
            for each in self._bands:
                if prompt > each.above:
                    band = each
        pico = 0
        if usage.cached or usage.written or usage.audio_input or usage.image_input:
            for n, rate in _parts_of_prompt(usage, band, prompt):
                if n and rate is None:
                    return None
                pico += n * (rate or 0)
        else:
            pico = prompt * band.input
        if usage.audio_output or usage.image_output or band.reasoning is not None:
            for n, rate in _parts_of_answer(usage, band, answer):
                if n and rate is None:
                    return None
                pico += n * (rate or 0)
        elif answer:
            if band.output is None:
                return None
            pico += answer * band.output
        if usage.is_regional:
            pico = (pico * self.regional_percent + 50) // 100
        pico += band.request
        if usage.web_searches:
            if band.web_search is None:
                return None
            pico += usage.web_searches * band.web_search
        return Cost(pico)

    def lacks(self, usage: TokenUsage) -> str:
        """Return the first kind of tokens of a call that has no rate, as Band calls it; "": each has one."""
        if (
            not self._bands
            or self._bands[0].units is not None
            or usage.input is None
            or usage.output is None
            or self.is_billed(usage)
        ):
            return ""
        band = [each for each in self._bands if usage.input > each.above or each is self._first][-1]
        names = (*_PROMPT, *_ANSWER)
        parts = (*_parts_of_prompt(usage, band, usage.input), *_parts_of_answer(usage, band, usage.output))
        found = (name for name, (n, rate) in zip(names, parts, strict=True) if n and rate is None)
        return next(found, "web_search" if usage.web_searches and band.web_search is None else "")


_Parts = tuple[tuple[int, int | None], ...]
# What _parts_of_prompt() and _parts_of_answer() return, in their order.
_PROMPT: Final = (
    "cached",
    "audio_cached",
    "image_cached",
    "written",
    "written_1h",
    "audio_input",
    "image_input",
    "input",
)
_ANSWER: Final = ("reasoning", "audio_output", "image_output", "output")


def _parts_of_prompt(usage: TokenUsage, band: Band, prompt: int) -> _Parts:
    """Return how many tokens of the prompt are of each kind, and the rate of that kind. Each token is of one kind."""
    sound, pictures = usage.audio_input or 0, usage.image_input or 0
    cached = min(usage.cached or 0, prompt)
    rate = band.cached
    if usage.audio_cached is None and usage.image_cached is None and cached and (sound or pictures):
        # Which of them were in the cache is not told. It does not matter where they cost the same.
        audio_cached = cached if sound >= prompt else 0
        image_cached = cached if pictures >= prompt else 0
        if not audio_cached and not image_cached:
            rates = {band.cached, *((band.audio_cached,) if sound else ()), *((band.image_cached,) if pictures else ())}
            rate = band.cached if len(rates) == 1 else None
    else:
        audio_cached = min(usage.audio_cached or 0, cached, sound)
        image_cached = min(usage.image_cached or 0, cached - audio_cached, pictures)
    written = min(usage.written or 0, prompt - cached)
    written_1h = min(usage.written_1h or 0, written)
    rest = prompt - cached - written
    audio = min(sound - audio_cached, rest)
    image = min(pictures - image_cached, rest - audio)
    return (
        (cached - audio_cached - image_cached, rate),
        (audio_cached, band.audio_cached),
        (image_cached, band.image_cached),
        (written - written_1h, band.written),
        (written_1h, band.written_1h),
        (audio, band.audio_input),
        (image, band.image_input),
        (rest - audio - image, band.input),
    )


def _parts_of_answer(usage: TokenUsage, band: Band, answer: int) -> _Parts:
    """Return the same of the answer."""
    # Where reasoning costs as other output, it is among that.
    thought = 0 if band.reasoning is None else min(usage.reasoning or 0, answer)
    audio = min(usage.audio_output or 0, answer - thought)
    image = min(usage.image_output or 0, answer - thought - audio)
    rate = band.image_output
    if rate is None and image == answer:
        rate = band.pictures_only
    return (
        (thought, band.reasoning),
        (audio, band.audio_output),
        (image, rate),
        (answer - thought - audio - image, band.output),
    )


# The units of what is paid in place of tokens, by the rate that each has (UnitRates).
UNITS: Final[Mapping[str, str]] = {
    "input_audio_hours": "hour",
    "input_mchars": "letter",
    "output_pictures": "picture",
    "output_video_seconds": "video_second",
    "input_document_kpages": "page",
    "input_annotated_document_kpages": "annotated_page",
    "rerank_searches_kcount": "search_unit",
}
_PRICED: Final = frozenset({"input_mtok", "output_mtok", "requests_kcount", *UNITS})
# A rate of genai-prices' units: one number, or the first one and then [above, number].
Rate = int | list[int | list[int]]


def compiled(rates: Mapping[str, Rate], *, makes_pictures: bool = False) -> tuple[Band, ...]:
    """Return the bands of rates by unit; none: they have no rate of tokens or calls.

    A kind without a rate of its own has none: who knows that it costs as another does gives it that rate.
    makes_pictures: an answer that is pictures only has the rate of its output.
    """
    if rates.keys().isdisjoint(_PRICED):
        return ()
    starts = {-1}
    for rate in rates.values():
        if isinstance(rate, list):
            starts.update(int(tier[0]) for tier in rate[1:] if isinstance(tier, list))
    return tuple(
        _band(above, {unit: _at(rate, above) for unit, rate in rates.items()}, makes_pictures)
        for above in sorted(starts)
    )


def _at(rate: Rate, above: int) -> int:
    if isinstance(rate, int):
        return rate
    found = rate[0]
    for tier in rate[1:]:
        if isinstance(tier, list) and tier[0] <= above:
            found = tier[1]
    assert isinstance(found, int), "the first is a number"
    return found


def _band(above: int, rates: dict[str, int], makes_pictures: bool) -> Band:
    by_unit = {name: rates[unit] for unit, name in UNITS.items() if unit in rates}
    return Band(
        above=above,
        input=rates.get("input_mtok", 0),
        output=rates.get("output_mtok"),
        cached=rates.get("cache_read_mtok"),
        written=rates.get("cache_write_mtok"),
        written_1h=rates.get("cache_write_1h_mtok"),
        audio_input=rates.get("input_audio_mtok"),
        audio_cached=rates.get("cache_audio_read_mtok"),
        audio_output=rates.get("output_audio_mtok"),
        image_input=rates.get("input_image_mtok"),
        image_output=rates.get("output_image_mtok"),
        reasoning=rates.get("output_reasoning_mtok"),
        web_search=rates.get("web_searches_kcount"),
        request=rates.get("requests_kcount", 0),
        image_cached=rates.get("cache_image_read_mtok"),
        pictures_only=rates.get("output_mtok") if makes_pictures else None,
        units=UnitRates(**by_unit, least_ms=rates.get("least_ms", 0)) if by_unit else None,
    )


_FREE: Final = Band(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0, 0, 0, None)


def free() -> tuple[Band, ...]:
    """Return the rates of what costs nothing, whatever it is."""
    return (_FREE,)
