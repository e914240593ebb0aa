"""The table of objects: for each kind that outlives its request, where it stands and where replies tell its ids.

    KINDS       all of them
    kind_at()   the kind that the words of a path name, and where its id stands

An object below another one (the files of a vector store, the events of a session) belongs to whom the outer one does:
it has no row of its own. A kind of Google's is named as `files/ID`, wherever that stands; other kinds by the bare id.

Knows: paths, ids, fields. Does not know: who owns an object (gateway/access/ownership.py), or bodies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from velox.policy.api.groups import Group

__all__ = ["CHAT", "KINDS", "ObjectKind", "id_at", "kind_at", "without_verb"]


class ObjectKind(NamedTuple):
    """One kind of object.

    path: the words of its collection. anywhere: also below a base that is not known; the words of other kinds are too
    common for that. made: where the reply that makes one tells its id; of an event stream also `id` and `response.id`.
    made_of: as `made`, of a POST below an object. told: what each reply about an object tells of more objects of its
    owner's; `[]` stands for the items of a list. shared: ids that are the provider's own, for all of its customers.
    """

    path: tuple[str, ...]
    group: Group
    anywhere: bool = False
    made: tuple[str, ...] = ("id",)
    made_of: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    shared: str = ""

    @property
    def collection(self) -> str:
        """Its path as one text."""
        return "/".join(self.path)

    def is_shared(self, object_id: str) -> bool:
        """Say whether an id is one of the provider's own."""
        return bool(self.shared) and re.fullmatch(self.shared, object_id) is not None


CHAT: Final = ("chat", "completions")
_NAMED: Final = ("name", "id")  # Google's: some have both
_OUTPUT: Final = ("output_file_id", "error_file_id", "response.responsesFile", "metadata.output.responsesFile")
_VIDEOS: Final = (
    "response.generateVideoResponse.generatedSamples[].video.uri",
    "response.generatedVideos[].video.uri",
    "response.videos[].uri",
)
_ORG: Final = Group.ORGANIZATION


def _kind(
    path: str,
    group: Group,
    made: tuple[str, ...] = ("id",),
    *,
    anywhere: bool = False,
    made_of: tuple[str, ...] = (),
    told: tuple[str, ...] = (),
    shared: str = "",
) -> ObjectKind:
    return ObjectKind(tuple(path.split("/")), group, anywhere, made, made_of, told, shared)


# The longer of two paths that begin alike first.
KINDS: Final = (
    # OpenAI's, also at Azure; files and batches are Anthropic's and Google's, too.
    _kind("fine_tuning/jobs", Group.FINE_TUNING, anywhere=True, told=("result_files[]",)),
    _kind(
        "fine_tuning/checkpoints", _ORG
    ),  # who may use a model: of the organization, with a key of its administration
    _kind("chat/completions", Group.INFERENCE, ("id", "request_id"), anywhere=True),
    # xAI's answers of later, which are asked for at the other one. https://docs.x.ai/docs/guides/deferred-chat-completions
    _kind("chat/deferred-completion", Group.INFERENCE, ("request_id",)),
    _kind("messages/batches", Group.BATCHES, anywhere=True),
    _kind("videos/characters", Group.VIDEOS, anywhere=True),
    _kind("responses", Group.INFERENCE, anywhere=True),
    _kind("files", Group.FILES, ("id", "name", "file.name", "files[].name"), anywhere=True),
    _kind("uploads", Group.FILES, anywhere=True, made_of=("id", "file.id")),
    _kind("batches", Group.BATCHES, ("id", "name", *_OUTPUT), anywhere=True, told=("id", "name", *_OUTPUT)),
    _kind("vector_stores", Group.VECTOR_STORES, anywhere=True),
    _kind("assistants", Group.ASSISTANTS, anywhere=True),
    _kind("threads", Group.ASSISTANTS, ("id", "thread_id"), anywhere=True),
    # Mistral's have `conversation_id`, and one that is begun anew is another one. https://docs.mistral.ai/api
    _kind("conversations", Group.CONVERSATIONS, ("id", "conversation_id"), anywhere=True, made_of=("conversation_id",)),
    _kind("containers", Group.CONTAINERS, anywhere=True),
    _kind("evals", Group.EVALS, anywhere=True),
    # xAI's have `request_id`. https://docs.x.ai/docs/api-reference#video-generation
    _kind("videos", Group.VIDEOS, ("id", "request_id"), anywhere=True, made_of=("id", "request_id")),
    _kind("video/generations/jobs", Group.VIDEOS, told=("generations[].id",)),
    _kind("video/generations", Group.VIDEOS),
    _kind("operations/images", Group.INFERENCE),
    _kind("skills", Group.SKILLS, shared=r"(?!skill_).*"),
    _kind("chatkit/sessions", Group.ASSISTANTS),
    _kind("chatkit/threads", Group.ASSISTANTS),
    _kind("realtime/calls", Group.INFERENCE),
    _kind("live/sessions", Group.INFERENCE, made_of=("id", "session.id")),
    _kind("audio/voices", Group.INFERENCE),
    _kind("audio/voice_consents", Group.INFERENCE),
    _kind("agents/sessions", Group.SESSIONS),
    # Anthropic's.
    _kind("sessions", Group.SESSIONS),
    _kind("memory_stores", Group.SESSIONS),
    _kind("dreams", Group.SESSIONS),
    _kind("user_profiles", Group.SESSIONS),
    # Google's.
    _kind("cachedContents", Group.CACHES, _NAMED, anywhere=True),
    _kind("fileSearchStores", Group.VECTOR_STORES, _NAMED, anywhere=True, made_of=_NAMED),
    _kind("corpora", Group.VECTOR_STORES, _NAMED),
    _kind("ragStores", Group.VECTOR_STORES, _NAMED),
    _kind("tunedModels", Group.FINE_TUNING, _NAMED, anywhere=True),
    _kind("tuningJobs", Group.FINE_TUNING, _NAMED, anywhere=True),
    _kind("batchPredictionJobs", Group.BATCHES, _NAMED, anywhere=True),
    _kind("operations", Group.INFERENCE, _NAMED, told=_VIDEOS),
    _kind("generatedFiles", Group.FILES, _NAMED),
    _kind("interactions", Group.INFERENCE, ("id", "name")),
    _kind("voices", Group.INFERENCE, ("id", "name"), shared=r"[A-Z][a-z]+"),
    # Of the whole account: every key of it sees the same ones, and what they do is done in its name or by itself.
    *(
        _kind(path, _ORG, _NAMED)
        for path in (
            *("vaults", "tunnels", "environments", "deployments", "deployment_runs", "agents", "projects", "safety"),
            *("webhook_endpoints", "webhook_event_types", "webhooks", "credentials", "triggers"),
        )
    ),
    # Of others with OpenAI's API.
    _kind("batch/jobs", Group.BATCHES),
    _kind("libraries", Group.VECTOR_STORES),
    # Cohere's. https://docs.cohere.com/reference/create-dataset, .../create-embed-job, .../createfinetunedmodel
    _kind("datasets", Group.FILES),
    _kind("embed-jobs", Group.BATCHES, ("job_id", "id")),
    _kind("finetuning/finetuned-models", Group.FINE_TUNING, ("finetuned_model.id", "id")),
)
# Words that stand where an id may stand, and are none.
_NO_IDS: Final = frozenset({"compact", "input_tokens", "runs", "edits", "extensions", "generations"})
_BY_WORD: Final[Mapping[str, tuple[ObjectKind, ...]]] = MappingProxyType(
    {kind.path[0]: tuple(each for each in KINDS if each.path[0] == kind.path[0]) for kind in KINDS}
)


def without_verb(word: str) -> str:
    """Return a word of a path without what Google's API has asked of it: `x` of `x:download`."""
    return word.partition(":")[0]


def kind_at(words: tuple[str, ...]) -> tuple[ObjectKind, int] | None:
    """Return the kind whose objects stand in a path, and where their ids stand in it; None: none does.

    words: below the base of the API.
    """
    plain = tuple(map(without_verb, words))
    for at, word in enumerate(plain):
        for kind in _BY_WORD.get(word, ()):
            end = at + len(kind.path)
            if plain[at:end] == kind.path and (kind.anywhere or not at):
                return kind, end
    return None


def id_at(words: tuple[str, ...], at: int) -> str:
    """Return the id that stands there in a path; "" where the path names the collection itself."""
    found = without_verb(words[at]) if at < len(words) else ""
    return "" if found in _NO_IDS else found
