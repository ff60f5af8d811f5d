"""See every self-attention of a transformers model while it runs its own forward pass.

Most families call a function that `ALL_ATTENTION_FUNCTIONS.get_interface` returns. While a watch
is open that function is wrapped: it reports its arguments, runs, and reports its result. Neither
config nor masks change, so the model computes what it always computes. GPT-J, GPT-Neo and CodeGen
call their own method `_attn`, XLNet `rel_attn_core` and WavLM `torch_multi_head_self_attention`,
which are wrapped the same way. Families with attention written into their forward are read by
hooks, see own_attention.py. Closing the watch removes all of it.

q and k before rotation come from the model's own code: the attention module is run a second time
with all angles set to 0, up to the point where its attention function is called.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from headscape.errors import InputError
from headscape.models.transformers.attention_call import Captured, ObservedCall
from headscape.models.transformers.attention_probe import Probe
from headscape.models.transformers.conformer_attention import as_conformer
from headscape.models.transformers.forward_arguments import arguments, crosses
from headscape.models.transformers.mask_reader import chunk_of, split_mask, with_bias
from headscape.models.transformers.own_attention import OWN, REFUSED, RESULT, kind_of
from headscape.models.transformers.own_call import split_heads
from headscape.models.transformers.readable_attention import readable_attention
from headscape.models.transformers.relative_attention import unprojected, wavlm, xlnet

METHODS = {"GPTJAttention", "CodeGenAttention", "GPTNeoSelfAttention"}
"""Families with a method `_attn(q, k, v, mask)`."""
XLNET, WAVLM = "XLNetRelativeAttention", "WavLMAttention"

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
        examine: bool = False,
    ) -> None:
        """`layers` limits the calls that are reported; `examine` fills `shares_position`."""
        self.body, self.on_call, self.on_result = body, on_call, on_result
        self.layers, self.examine = layers, examine
        self.layer = 0
        self.probe = Probe()
        self.hooked: set[int] = set()
        self.given: dict[int, dict[str, Any]] = {}
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(readable_attention(self.body))
            for module in observed(self.body):
                kind = kind_of(module)
                if kind in REFUSED:
                    raise InputError(REFUSED[kind])
                if kind in OWN:
                    self._watch_own(stack, module, kind)
                elif "ttention" in kind or "ttn" in kind:
                    hook = module.register_forward_pre_hook(self._remember, with_kwargs=True)
                    stack.callback(hook.remove)
                    self.hooked.add(id(module))
                    if kind in METHODS:
                        self._watch_method(stack, module)
                    if kind == XLNET:
                        self._watch_core(stack, module)
                    if kind == WAVLM:
                        self._watch_projected(stack, module)
            self._watch_interface(stack)
            self.stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.given.clear()
        self.stack.close()

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.probe.running:
            self.given[id(module)] = arguments(module, args, kwargs)

    def _given(self, module: nn.Module) -> dict[str, Any]:
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
        original = INTERFACE.get_interface
        ours = {id(module) for module in observed(self.body)}

        def get_interface(name: str, default: Any) -> Any:
            run = original(name, default)

            def attention(
                module: nn.Module, q: Any, k: Any, v: Any, *rest: Any, **more: Any
            ) -> Any:
                if id(module) not in ours:
                    return run(module, q, k, v, *rest, **more)
                if self.probe.running:
                    raise Captured(q, k)
                given = self._given(module)
                if crosses(given, q, k):
                    return run(module, q, k, v, *rest, **more)
                if self._wanted():
                    # AFMoE names its mask; most families pass it by place.
                    mask = rest[0] if rest else more.get("attention_mask")
                    self._report(module, given, q, k, v, mask, more)
                result = run(module, q, k, v, *rest, **more)
                changed = self._finish(result[0].transpose(1, 2))
                return result if changed is None else (changed.transpose(1, 2), *result[1:])

            return attention

        vars(INTERFACE)["get_interface"] = get_interface
        stack.callback(vars(INTERFACE).pop, "get_interface")

    def _watch_method(self, stack: ExitStack, module: Any) -> None:
        original = module._attn

        def attention(q: Any, k: Any, v: Any, mask: Any = None, **more: Any) -> Any:
            if self.probe.running:
                raise Captured(q, k)
            scale = 1.0 / float(getattr(module, "scale_attn", 1.0))
            window = getattr(module, "bias", None)
            given = self._given(module)
            if self._wanted():
                extra = {"scaling": scale, "allowed": window}
                self._report(module, given, q, k, v, mask, extra)
            result = original(q, k, v, mask, **more)
            changed = self._finish(result[0])
            return result if changed is None else (changed, *result[1:])

        module._attn = attention
        stack.callback(delattr, module, "_attn")

    def _watch_core(self, stack: ExitStack, module: Any) -> None:
        original = module.rel_attn_core

        def attention(
            q: Any, k: Any, v: Any, r: Any, seg_mat: Any = None, attn_mask: Any = None, **more: Any
        ) -> Any:
            self._given(module)
            if self._wanted():
                self._tell(xlnet(module, q, k, v, r, seg_mat, attn_mask))
            result = original(q, k, v, r, seg_mat=seg_mat, attn_mask=attn_mask, **more)
            mixed = result[0] if isinstance(result, tuple) else result
            self._finish(mixed.permute(1, 2, 0, 3))
            return result

        module.rel_attn_core = attention
        stack.callback(delattr, module, "rel_attn_core")

    def _watch_projected(self, stack: ExitStack, module: Any) -> None:
        name = "torch_multi_head_self_attention"
        original = getattr(module, name)

        def attention(hidden: Any, mask: Any, bias: Any) -> Any:
            if self._wanted():
                self._tell(wavlm(module, hidden, mask, bias))
            with unprojected(module):
                merged, weights = original(hidden, mask, bias)
            changed = self._finish(split_heads(merged, module.head_dim))
            merged = merged if changed is None else changed.transpose(1, 2).flatten(2)
            return module.out_proj(merged), weights

        setattr(module, name, attention)
        stack.callback(delattr, module, name)

    def _watch_own(self, stack: ExitStack, module: nn.Module, kind: str) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._wanted():
                self._tell(OWN[kind](module, arguments(module, args, kwargs)))

        def merged(result: Tensor, *rest: Any) -> tuple[Any, ...] | None:
            heads = result.reshape(*result.shape[:-1], -1, _head_dim(module))
            changed = self._finish(heads.transpose(1, 2))
            return None if changed is None else (changed.transpose(1, 2).flatten(2), *rest)

        stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        name = RESULT[kind]
        if name is None:
            hook = module.register_forward_hook(lambda _, __, result: merged(*result))
        else:
            projection = module.get_submodule(name)
            hook = projection.register_forward_pre_hook(lambda _, given: merged(*given))
        stack.callback(hook.remove)

    def _report(
        self,
        module: nn.Module,
        given: dict[str, Any],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        more: dict[str, Any],
    ) -> None:
        queries, keys = q.shape[2], k.shape[2]
        causal = more.get("is_causal")
        flash = self._flash() is not None
        mask = None if flash else mask
        seen, added = split_mask(mask, queries, keys)
        allowed = more.get("allowed")
        if allowed is not None:
            allowed = allowed[:, :, keys - queries : keys, :keys]
            seen = allowed if seen is None else seen & allowed
        scale = more.get("scaling")
        softcap, sink = more.get("softcap"), more.get("s_aux")
        rotation = given.get("position_embeddings")
        pair = isinstance(rotation, tuple) and len(rotation) == 2
        shares, growth = self.probe.growth(module, given) if self.examine else (True, None)
        call = ObservedCall(
            module=module,
            q=q,
            k=k,
            v=v,
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
            mask=seen,
            bias=with_bias(more.get("position_bias"), added),
            unrotated=self.probe.without_angles(module, given),
            rotation=rotation if pair else None,
            shares_position=shares,
            growth=growth,
            window=more.get("sliding_window") or getattr(module, "sliding_window", None),
            flash=flash,
            chunk=chunk_of(module),
            softcap=softcap,
            sink=sink,
        )
        self._tell(as_conformer(call))

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


def observed(body: Any) -> Iterator[nn.Module]:
    """Yield the modules of a body, without those of an adapter, which shortens the sequence."""
    adapter = getattr(body, "adapter", None)
    outside = set(adapter.modules()) if isinstance(adapter, nn.Module) else set()
    return (module for module in body.modules() if module not in outside)


def _head_dim(module: Any) -> int:
    names = ("head_dim", "attention_head_size", "key_value_proj_dim")
    return next(int(getattr(module, name)) for name in names if hasattr(module, name))
