"""See every self-attention of a transformers model while it runs its own forward pass.

Most families call a function that `ALL_ATTENTION_FUNCTIONS.get_interface` returns. While a watch
is open that function is wrapped: it reports its arguments, runs, and reports its result. Neither
config nor masks change, so the model computes what it always computes. Where a family's record says
that attention is in a method or in its forward, that is wrapped or hooked instead (families.py).
Closing the watch removes all of it.

q and k before rotation come from the model's own code: the attention module is run a second time
with all angles set to 0, up to the point where its attention function is called. Latent attention
(MLA: DeepSeek-V2 and V3, Kimi) rotates some dims of a head, which change places before the call:
`_latent_rotated_dims` tells how many, and `_report` puts them back.

A model on our own attention runs on sdpa while it is observed, or on eager where sdpa drops a part
of the scores. One with an encoding that `set_encoding` put in stays on ours, which reports
its calls.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from headscape.call.bias import dense
from headscape.call.definition import AttentionCall
from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.models.transformers.families import FULL_UP_TO, Family, Given, family_of
from headscape.models.transformers.observed_call import (
    ENCODING,
    Captured,
    ObservedCall,
    allowance,
    listening,
    split_mask,
    with_bias,
)

OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "kv")
"""Arguments of cross-attention: the sequence that keys come from."""
SHARED = "shared_kv_states"
"""The argument by which later layers read the keys of an earlier one (Gemma 3n and 4)."""
OURS = "headscape"
"""How the names of our attention implementations begin."""
OnCall = Callable[[int, ObservedCall], None]
OnResult = Callable[[int, Tensor], Tensor | None]
"""Called with a layer and its attention's result [b h t e], heads still apart; a tensor that it
returns takes the result's place."""


class AttentionWatch:
    """A context in which every self-attention of `body` is reported, numbered from 0."""

    def __init__(
        self,
        body: nn.Module,
        on_call: OnCall,
        on_result: OnResult = lambda _, __: None,
        *,
        layers: Collection[int] | None = None,
        modules: Sequence[nn.Module] | None = None,
        examine: bool = False,
        replaces: bool = False,
        cached: bool = False,
        cross: bool = False,
    ) -> None:
        """`layers` limits the calls that are reported; `examine` fills `shares_position`.

        `modules` is the attention of layers 0, 1, 2 ... as the model was read; without it, layers
        are counted as they run. `replaces` says that `on_result` replaces every result, so that
        attention behind the interface is not computed. With `cached`, passes that continue from a
        cache are reported too: they have more keys than queries. With `cross`, cross-attention is
        reported instead of self-attention.
        """
        self.cached, self.cross = cached, cross
        self.past = 0
        """Tokens in the cache before this pass, where passes continue from one."""
        self.modules = None if modules is None else [*modules]
        self.extra_keys: list[nn.Module] = []
        """Attention whose keys are not those of the tokens alone, so that it is not reported."""
        self.body, self.on_call, self.on_result = body, on_call, on_result
        self.layers, self.examine = layers, examine
        self.layer = 0
        self.probing = False
        self.injected = is_injected(body)
        # An encoding that was put in reports its call from its own attention, which has to run.
        self.replaces = replaces and not self.injected
        self.hooked: set[int] = set()
        self.given: dict[int, Given] = {}
        self.shared: dict[int, Any] = {}
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if not self.injected:
                stack.enter_context(_readable_attention(self.body))
            stack.enter_context(_full_attention(self.body))
            for module in observed(self.body):
                family = family_of(module)
                if family.refused is not None:
                    raise InputError(family.refused)
                if family.read is not None and family.method is None:
                    self._watch_forward(stack, module, family)
                elif names_attention(module):
                    hook = module.register_forward_pre_hook(self._remember, with_kwargs=True)
                    stack.callback(hook.remove)
                    self.hooked.add(id(module))
                    if family.method is not None:
                        self._watch_method(stack, module, family)
            self._watch_interface(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.given.clear()
        self.shared.clear()
        self.stack.close()

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: Given) -> None:
        if not self.probing:
            self.given[id(module)] = arguments(module.forward, args, kwargs)

    def _given(self, module: nn.Module) -> Given:
        """The arguments of the module's forward, empty if its class is not one that is hooked."""
        if id(module) in self.hooked and id(module) not in self.given:
            raise InputError(
                f"{type(module).__name__} computes attention more than once per layer, which "
                f"cannot be read as one set of scores."
            )
        return self.given.pop(id(module), {})

    def _watch_interface(self, stack: ExitStack) -> None:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as INTERFACE

        if "get_interface" in vars(INTERFACE):
            raise InputError(
                "a transformers model is being observed already: observe one at a time."
            )
        ours = {id(module) for module in observed(self.body)}
        files = {type(module).__module__ for module in observed(self.body)}
        # Doge has an interface of its own.
        tables = [getattr(sys.modules[file], "ALL_ATTENTION_FUNCTIONS", None) for file in files]
        for table in {id(each): each for each in (INTERFACE, *tables) if each is not None}.values():
            vars(table)["get_interface"] = self._interface(table.get_interface, ours)
            stack.callback(vars(table).pop, "get_interface")

    def _interface(self, original: Callable[..., Any], ours: set[int]) -> Callable[..., Any]:
        """Return a `get_interface` whose functions report the calls of modules in `ours`."""

        def get_interface(name: str, default: Any) -> Any:
            run = original(name, default)

            def attention(
                module: nn.Module, q: Any, k: Any, v: Any, *rest: Any, **more: Any
            ) -> Any:
                if id(module) not in ours:
                    return run(module, q, k, v, *rest, **more)
                if self.probing:
                    raise Captured(q, k)
                given = self._given(module)
                if not self._is_layer(module, given, q, k):
                    return run(module, q, k, v, *rest, **more)
                # AFMoE names its mask; most families pass it by place.
                mask = rest[0] if rest else more.get("attention_mask")

                def hear(call: AttentionCall, encoding: Encoding | None) -> None:
                    self._report_ours(module, given, q, k, call, encoding, more)

                with ExitStack() as reporting:
                    if self._wanted() and self.injected:
                        reporting.enter_context(listening(hear))
                    elif self._wanted():
                        self._report(module, given, q, k, v, mask, more)
                    elif SHARED in given:
                        self._probe(module, given)
                    result = (self._placeholder if self.replaces else run)(
                        module, q, k, v, *rest, **more
                    )
                changed = self._finish(result[0].transpose(1, 2))
                return result if changed is None else (changed.transpose(1, 2), *result[1:])

            return attention

        return get_interface

    def _is_layer(self, module: nn.Module, given: Given, q: Tensor, k: Tensor) -> bool:
        """Return whether a call is attention of the kind that is watched, in the layer that is due.

        Raise InputError if that layer has keys that are not tokens.
        """
        named = any(given.get(name) is not None for name in OTHER_SEQUENCE)
        queries, keys = q.shape[2], k.shape[2]
        extra = keys > self.past + queries if self.cached else keys != queries
        if self.cross:
            return named or extra
        if self.modules is None:
            if extra and not named:
                self.extra_keys.append(module)
            return not (named or extra)
        if self.modules[self.layer % len(self.modules)] is not module:
            return False
        if extra and self._wanted():
            static = "its cache is static, or " if self.cached else ""
            raise InputError(
                f"layer {self.layer} (counted from 0) has {keys} keys for "
                f"{self.past + queries} tokens: {static}{type(module).__name__} adds keys that are "
                f"not tokens, and such a layer cannot be read. Choose a different layer or a "
                f"shorter text."
            )
        return True

    @staticmethod
    def _placeholder(
        _: nn.Module, q: Tensor, __: Tensor, v: Tensor, *___: Any, **____: Any
    ) -> tuple[Tensor, None]:
        """Return a result of the right shape, [b t h e], where `on_result` returns the real one."""
        return v.new_zeros(*q.shape[:3], v.shape[-1]).transpose(1, 2), None

    def _watch_method(self, stack: ExitStack, module: Any, family: Family) -> None:
        method = family.method
        assert method is not None
        original = getattr(module, method.name)

        def attention(*args: Any, **kwargs: Any) -> Any:
            asked = arguments(original, args, kwargs)
            if self.probing:
                raise Captured(asked["query"], asked["key"])
            given = self._given(module)
            if self._wanted() and family.read is not None:
                self._tell(family.read(module, asked))
            elif self._wanted():
                q, k, v = (asked[name] for name in ("query", "key", "value"))
                divisor = getattr(module, "scale_attn", getattr(module, "norm_factor", 1.0))
                scale = 1.0 / float(divisor)
                more = {"scaling": scale, "allowed": getattr(module, "bias", None)}
                self._report(module, given, q, k, v, asked.get("attention_mask"), more)
            result, finish = method.run(module, original, asked)
            changed = self._finish(result)
            return finish(result if changed is None else changed)

        setattr(module, method.name, attention)
        stack.callback(delattr, module, method.name)

    def _watch_forward(self, stack: ExitStack, module: nn.Module, family: Family) -> None:
        read = family.read
        assert read is not None

        crosses = False
        rows: int | None = None

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: Given) -> None:
            nonlocal crosses, rows
            given = arguments(module.forward, args, kwargs)
            # A reader takes keys from the same sequence.
            other = any(given.get(name) is not None for name in OTHER_SEQUENCE)
            crosses = other or self.cross
            if self._wanted() and not crosses:
                call = read(module, given)
                rows = call.q.shape[2]
                self._tell(call)

        def merged(result: Tensor, *rest: Any) -> tuple[Any, ...] | None:
            if crosses:
                return None
            heads = result.reshape(*result.shape[:-1], -1, _head_dim(module))
            # A family that pads to whole blocks returns more rows than it was read to have.
            padding = heads[:, heads.shape[1] if rows is None else rows :]
            changed = self._finish(heads[:, :rows].transpose(1, 2))
            if changed is None:
                return None
            whole = torch.cat([changed.transpose(1, 2), padding], dim=1)
            return (whole.flatten(2), *rest)

        stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        if family.result is None:
            hook = module.register_forward_hook(lambda _, __, result: merged(*result))
        else:
            projection = module.get_submodule(family.result)
            hook = projection.register_forward_pre_hook(lambda _, given: merged(*given))
        stack.callback(hook.remove)

    def _report(
        self,
        module: nn.Module,
        given: Given,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        more: Given,
    ) -> None:
        queries, keys = q.shape[2], k.shape[2]
        causal = more.get("is_causal")
        flash = self._flash() is not None
        seen, added = split_mask(None if flash else mask, queries, keys)
        allowed = more.get("allowed")
        if allowed is not None:
            allowed = allowed[:, :, keys - queries : keys, :keys]
            seen = allowed if seen is None else seen & allowed
        scale = more.get("scaling")
        rotation = given.get("position_embeddings")
        if isinstance(rotation, dict):
            rotation = rotation.get(getattr(module, "rope_layer_type", None))
        if isinstance(rotation, Tensor) and rotation.is_complex():
            rotation = rotation.real, rotation.imag
        pair = isinstance(rotation, tuple) and len(rotation) == 2
        unrotated, shares, growth = self._probe(module, given)
        turned = _latent_rotated_dims(module)
        if turned is not None and unrotated is not None and turned < q.shape[-1]:
            # MLA rotates the last dims of a head, our encodings the first; scores do not change if
            # q and k change places of dims together.
            q, k = q.roll(turned, -1), k.roll(turned, -1)
            unrotated = unrotated[0].roll(turned, -1), unrotated[1].roll(turned, -1)
        call = ObservedCall(
            module=module,
            q=q,
            k=k,
            v=v,
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
            mask=seen,
            bias=with_bias(more.get("position_bias"), added),
            unrotated=unrotated,
            rotation=rotation if pair else None,
            shares_position=shares,
            growth=growth,
            window=more.get("sliding_window") or getattr(module, "sliding_window", None),
            flash=flash,
            chunk=_chunk_of(module),
            softcap=more.get("softcap"),
            sink=more.get("s_aux"),
        )
        adjust = family_of(module).adjust
        self._tell(call if adjust is None else adjust(call, given))

    def _report_ours(
        self,
        module: nn.Module,
        given: Given,
        q: Tensor,
        k: Tensor,
        call: AttentionCall,
        encoding: Encoding | None,
        more: Given,
    ) -> None:
        """Report a call that our own attention made, in a layer with or without our encoding."""
        if encoding is None:
            seen = call.visible.dense(call.positions)
            bias = None if call.bias is None else dense(call.bias, call.positions)
            more = {**more, "position_bias": bias, "scaling": call.scale}
            self._report(module, given, q, k, call.v, seen, more)
            return
        causal = call.visible.causal
        self._tell(
            ObservedCall(
                module=module, q=q, k=k, v=call.v, scale=call.scale, causal=causal, mask=None,
                window=call.visible.window, chunk=call.visible.chunk, softcap=call.softcap,
                sink=call.sink, injected=call, encoding=encoding,
            )
        )  # fmt: skip

    def _probe(
        self, module: nn.Module, given: Given
    ) -> tuple[tuple[Tensor, Tensor] | None, bool, Tensor | None]:
        """Run a module once more with all angles 0, up to its attention.

        Returns q and k of its input before rotation, or None if it is given no angles; and, where
        that is examined, whether equal hidden states give equal k and q up to a factor, and that
        factor per position. Equal hidden states are a second row of the same batch.
        """
        still = _still(module, given)
        name = next(iter(given), None)
        if name is None or not isinstance(given[name], Tensor):
            return None, not self.examine, None
        hidden = given[name]
        if not self.examine:
            return None if still is None else self._run(module, {**given, **still}), True, None
        both = torch.cat([hidden, hidden[:, :1].expand_as(hidden)])
        # CTRL is given its input three times, as queries, keys and values.
        inputs = {each: both for each, value in given.items() if value is hidden}
        more = {**given, **inputs, **(still or {})}
        for kept in ("attention_mask", "position_embeddings"):
            more |= {kept: _twice(more[kept], len(hidden))} if kept in more else {}
        each_q, each_k = self._run(module, more)
        unrotated = None if still is None else (each_q[: len(hidden)], each_k[: len(hidden)])
        q, k = each_q[len(hidden) :], each_k[len(hidden) :]
        growth = (q[0] * q[0, :, :1]).sum(dim=-1) / q[0, :, :1].square().sum(dim=-1)
        # The first keys of a short convolution have zeros before them.
        mixed = family_of(module).key_convolution
        k = k if mixed is None else k[:, :, getattr(module.config, mixed) - 1 :]
        expected = (growth[..., None] * q[:, :, :1], k[:, :, :1])
        for each, wanted in zip((q, k), expected, strict=True):
            if (each - wanted).abs().amax() > max(1e-4, allowance(q.dtype)) * each.abs().amax():
                return unrotated, False, None
        return unrotated, True, growth

    def _run(self, module: nn.Module, given: Given) -> tuple[Tensor, Tensor]:
        changed: Given = {name: None for name in given if name in {"past_key_values", "layer_past"}}
        if given.get(SHARED) is not None:
            # What the model shares stays as it is; the probes share keys that are not rotated.
            changed[SHARED] = self.shared
        self.probing = True
        try:
            module.forward(**{**given, **changed})
        except Captured as found:
            return found.q, found.k
        except (RuntimeError, IndexError) as error:
            if not self.cached or isinstance(error, torch.OutOfMemoryError):
                raise
            raise InputError(
                f"{type(module).__name__} reads more than keys and values from its cache, as a "
                f"sparse indexer does, so its steps cannot be watched: capture the finished text "
                f"instead."
            ) from error
        finally:
            self.probing = False
        raise AssertionError(f"{type(module).__name__} did not call its attention again")

    def _tell(self, call: ObservedCall) -> None:
        """Report a call; raise InputError if flash attention would drop its bias."""
        flash = self._flash()
        if flash is not None and call.bias is not None:
            raise InputError(
                f"{type(call.module).__name__} adds a bias to its scores, which {flash} ignores: "
                f"load the model with attn_implementation='sdpa' or 'eager'."
            )
        self.on_call(self.layer, call)

    def _flash(self) -> str | None:
        """Return the name of the flash attention that runs, or None."""
        config: Any = getattr(self.body, "config", None)
        chosen = str(getattr(config, "_attn_implementation", None) or "")
        return chosen if "flash" in chosen else None

    def _wanted(self) -> bool:
        return self.layers is None or self.layer in self.layers

    def _finish(self, result: Tensor) -> Tensor | None:
        layer, self.layer = self.layer, self.layer + 1
        return self.on_result(layer, result)


def names_attention(module: nn.Module) -> bool:
    """Return whether a module is attention by the names that transformers gives its classes."""
    return any(part in type(module).__name__ for part in ("ttention", "ttn", "MLA"))


def observed(body: Any) -> Iterator[nn.Module]:
    """Yield the modules of a body, without those of an adapter, which shortens the sequence."""
    adapter = getattr(body, "adapter", None)
    outside = set(adapter.modules()) if isinstance(adapter, nn.Module) else set()
    return (module for module in body.modules() if module not in outside)


def arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Given) -> Given:
    """Return the arguments of a call by name, those of **kwargs among them."""
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs).arguments
    found = {}
    for name, value in bound.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def is_injected(body: nn.Module) -> bool:
    """Return whether `set_encoding` put an encoding into a model."""
    return any(ENCODING in module._modules for module in body.modules())


def _still(module: nn.Module, given: Given) -> Given | None:
    """Return the arguments that rotate by nothing; None if there are none."""
    rotation = given.get("position_embeddings")
    if isinstance(rotation, tuple) and len(rotation) == 2:
        cos, sin = rotation
        return {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}
    if isinstance(rotation, dict):
        # DeepSeek-V4 has one rotation for plain and one for compressed keys.
        each = {
            name: (torch.ones_like(cos), torch.zeros_like(sin))
            for name, (cos, sin) in rotation.items()
        }
        return {"position_embeddings": each}
    if isinstance(rotation, Tensor) and rotation.is_complex():
        return {"position_embeddings": torch.ones_like(rotation)}
    still = family_of(module).still
    return None if still is None else still(module, given)


def _twice(value: Any, batch: int) -> Any:
    """Return a tensor of a batch, or a pair of them, for two batches of the same."""
    if isinstance(value, tuple):
        return tuple(_twice(each, batch) for each in value)
    if isinstance(value, Tensor) and len(value) == batch:
        return torch.cat([value, value])
    return value


def _chunk_of(module: Any) -> int | None:
    """Return the length of the chunks that the config states for a layer (Llama 4), or None."""
    config = getattr(module, "config", None)
    types, at = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if not types or at is None or types[at] != "chunked_attention":
        return None
    size = getattr(config, "attention_chunk_size", None)
    return None if size is None else int(size)


def _latent_rotated_dims(module: Any) -> int | None:
    """Return how many of a head's last dims MLA rotates; None in any other attention."""
    config = getattr(module, "config", None)
    width = getattr(module, "qk_rope_head_dim", getattr(config, "qk_rope_head_dim", None))
    return None if width is None else int(width)


def _head_dim(module: Any) -> int:
    names = ("head_dim", "attention_head_size", "key_value_proj_dim")
    found = (int(getattr(module, name)) for name in names if hasattr(module, name))
    return next(found, 0) or module.split_size // module.n_head


def full_up_to(body: Any) -> int | None:
    """Return up to how many tokens transformers replaces block-sparse attention by full attention.

    None for a model without block-sparse attention. The number is written into BigBird's forward.
    """
    if getattr(body, "attention_type", None) != "block_sparse":
        return None
    config = body.config
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


@contextmanager
def _full_attention(body: Any) -> Iterator[None]:
    """Replace block-sparse attention by full attention, and restore it on exit.

    transformers does the same in a forward pass of a short text, and never restores it. The
    family's reader refuses longer texts.
    """
    longest = full_up_to(body)
    if longest is None:
        yield
        return
    switched = [each for each in body.modules() if hasattr(each, "attention_type")]
    sparse = [(each, each.self) for each in switched if "self" in each._modules]
    try:
        # The new modules take over the layers of the old ones; their own need no memory.
        with torch.device("meta"):
            body.set_attention_type("original_full")
        for holder, _ in sparse:
            setattr(holder.self, FULL_UP_TO, longest)
        yield
    finally:
        for holder, attention in sparse:
            holder.self = attention
        for each in switched:
            each.attention_type = "block_sparse"


@contextmanager
def _readable_attention(body: nn.Module) -> Iterator[None]:
    """Replace our attention by sdpa or eager in every config of a model, and restore it on exit.

    On ours a mask is a row of integers and T5's bias a table by distance.
    """
    every = (getattr(module, "config", None) for module in body.modules())
    configs: dict[int, Any] = {
        id(config): config
        for config in every
        if str(getattr(config, "_attn_implementation", "")).startswith(OURS)
    }
    chosen = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            # sdpa builds smaller matrices, but has no softcap.
            capped = getattr(config, "attn_logit_softcapping", None) is not None
            sdpa = getattr(body, "_supports_sdpa", False) and not capped
            config._attn_implementation_internal = "sdpa" if sdpa else "eager"
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = chosen[key]
