"""Mutation operators of attention code: each yields edits of a file's text that put one mistake into it.

An operator is a function of one node of the syntax tree and yields the text that takes the node's place. It knows
nothing of the doctor: it names a slip that people make in any style of code.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from collections.abc import Callable, Iterator

# The text that takes the node's place; or several statements, each with its new text.
Edit = str | list[tuple[ast.stmt, str]]
Operator = Callable[[ast.AST, "Code"], Iterator[Edit]]
OPERATORS: dict[str, Operator] = {}
_MASKING = re.compile(r"mask|pad|causal|valid|allowed|visible|bias", re.IGNORECASE)
_STREAM = re.compile(r"^(x|h|hs|src|tgt|inputs?|hidden_states|hidden|residual|shortcut|identity|skip)$")
_SCALE = re.compile(r"scal|sqrt|\*\* -?\(?-?(0?\.5|1 / 2)|temperature|rsqrt")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One edit of a file."""

    operator: str
    line: int
    before: str
    after: str
    text: str  # of the whole file


class Code:
    """A file's text, its tree, and in which statement and function each node stands."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.parent = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        """The function around a node, if it computes: no constructor, and none of the functions that make a module."""
        while node in self.parent:
            node = self.parent[node]
            if isinstance(node, ast.FunctionDef):
                return None if node.name in ("example", "make", "broken", "fixed", "reset_parameters") else node
        return None

    def statement(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, ast.stmt):
            node = self.parent[node]
        return node

    def decides(self, node: ast.AST) -> bool:
        """Whether a node is in the condition of a branch or an assertion."""
        while not isinstance(node, ast.stmt):
            above = self.parent[node]
            if isinstance(above, (ast.If, ast.While, ast.IfExp, ast.Assert)) and above.test is node:
                return True
            node = above
        return isinstance(node, ast.Raise)

    def edited(self, edits: list[tuple[ast.expr | ast.stmt, str]]) -> str:
        """The file's text with others in the places of these nodes. Its comments stay."""
        raw = self.text.encode()
        for node, text in sorted(edits, key=lambda x: -x[0].lineno):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            begin = self._starts[node.lineno - 1] + node.col_offset
            end = self._starts[node.end_lineno - 1] + node.end_col_offset
            raw = raw[:begin] + text.replace("\n", "\n" + " " * node.col_offset).encode() + raw[end:]
        return raw.decode()


def mutants(text: str) -> Iterator[Mutant]:
    """Every edit of every operator."""
    code = Code(text)
    for node in ast.walk(code.tree):
        if not isinstance(node, (ast.expr, ast.stmt)) or code.function(node) is None:
            continue
        for name, operator in OPERATORS.items():
            for new in operator(node, code):
                if isinstance(new, str):
                    wrapped = f"({new})" if isinstance(node, (ast.BinOp, ast.UnaryOp)) else new
                    yield Mutant(name, node.lineno, ast.unparse(node), new, code.edited([(node, wrapped)]))
                else:
                    said = " | ".join(text for _, text in new)
                    yield Mutant(name, node.lineno, ast.unparse(node), said, code.edited(list(new)))


def operator(name: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS[name] = function
        return function

    return register


def _called(node: ast.AST) -> str:
    """The last name of what is called with an operand; "" for anything else."""
    if not isinstance(node, ast.Call) or not _operands(node):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _operands(node: ast.AST) -> list[ast.expr]:
    """The arguments of a call: x and dim of x.f(dim), and of torch.f(x, dim)."""
    if not isinstance(node, ast.Call):
        return []
    method = isinstance(node.func, ast.Attribute) and not re.fullmatch(
        r"(torch|F|nn\.functional|torch\.nn\.functional|math|np|self)\.\w+", ast.unparse(node.func)
    )
    first = [node.func.value] if method and isinstance(node.func, ast.Attribute) else []
    return [*first, *node.args, *(x.value for x in node.keywords)]


def _with(node: ast.AST, old: ast.AST, new: str) -> str:
    """A node's text with another in the place of a part of it."""
    whole = copy.deepcopy(node)
    part = next(x for x, y in zip(ast.walk(whole), ast.walk(node), strict=True) if y is old)
    fresh = ast.parse(new, mode="eval").body

    class Swap(ast.NodeTransformer):
        def visit(self, x: ast.AST) -> ast.AST:
            return fresh if x is part else self.generic_visit(x)

    return ast.unparse(Swap().visit(whole))


def _is_fill(node: ast.AST) -> bool:
    """Whether a number stands for minus infinity."""
    said = ast.unparse(node)
    return bool(
        re.fullmatch(
            r"-?(math\.|torch\.|float\(['\"])?-?inf(['\"]\))?|-?torch\.finfo\(.*\)\.m(in|ax)|-1e\d+|-1\d{3,}(\.0)?",
            said,
        )
    )


def _pair(node: ast.AST) -> list[ast.expr] | None:
    """The two tensors of a torch.cat or torch.stack."""
    parts = _operands(node)[:1] if _called(node) in ("cat", "concat", "stack") else []
    found = parts[0].elts if parts and isinstance(parts[0], (ast.Tuple, ast.List)) else []
    return found if len(found) == 2 else None


def _reversed(node: ast.AST, pair: list[ast.expr]) -> str:
    first, second = map(ast.unparse, pair)
    return ast.unparse(node).replace(f"{first}, {second}", f"{second}, {first}", 1)


@operator("scale dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if "randn" in ast.unparse(node):  # of an initialisation
        return
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.Mult, ast.Div))
        and _SCALE.search(ast.unparse(node.right))
        and not _SCALE.search(ast.unparse(node.left))
    ):
        yield ast.unparse(node.left)
    if isinstance(node, ast.Assign) and re.fullmatch(r"self\.(scale|scaling|sm_scale)", ast.unparse(node.targets[0])):
        yield f"{ast.unparse(node.targets[0])} = 1.0"


@operator("scale d for sqrt d")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) == "sqrt":
        yield f"({ast.unparse(_operands(node)[0])})"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = ast.unparse(node.right)
        if power in ("0.5", "-0.5"):
            yield f"({ast.unparse(node.left)}) ** {power.replace('0.5', '1.0')}"


@operator("softmax dim")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("softmax", "log_softmax"):
        for x in _operands(node)[1:]:
            if ast.unparse(x) in ("-1", "3", "2"):
                yield _with(node, x, {"-1": "-2", "3": "2", "2": "1"}[ast.unparse(x)])


@operator("transpose dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("view", "reshape", "flatten"):
        inner = _operands(node)[0]
        while _called(inner) in ("contiguous", "clone"):
            inner = _operands(inner)[0]
        if _called(inner) in ("transpose", "permute", "swapaxes"):
            yield _with(node, inner, ast.unparse(_operands(inner)[0])).replace(".view(", ".reshape(")
    if _called(node) == "transpose":
        inner, *dims = _operands(node)
        if _called(inner) in ("view", "reshape") and [ast.unparse(x) for x in dims] == ["1", "2"]:
            parts = [ast.unparse(x) for x in _operands(inner)]
            if len(parts) == 5:
                x, a, b, c, d = parts
                yield f"{x}.reshape({a}, {c}, {b}, {d})"


@operator("einops order")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "->" in node.value:
        for pair in re.findall(r"\((\w+) (\w+)\)", node.value):
            yield repr(node.value.replace(f"({pair[0]} {pair[1]})", f"({pair[1]} {pair[0]})", 1))


@operator("k and v swapped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    attends = _called(node) in ("matmul", "bmm", "einsum", "scaled_dot_product_attention", "attn", "multihead_attn")
    if attends or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)):
        parts = [x for x in ast.walk(node) if isinstance(x, ast.Name) and re.fullmatch(r"[kv]|keys?|values?", x.id)]
        function = code.function(node)
        known = {x.id for x in ast.walk(function) if isinstance(x, ast.Name)}  # type: ignore[arg-type]
        other = {"k": "v", "v": "k", "key": "value", "value": "key", "keys": "values", "values": "keys"}
        if len(parts) == 1 and other[parts[0].id] in known:
            yield _with(node, parts[0], other[parts[0].id])


@operator("q and k swapped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and len(node.args) >= 2 and _called(node) not in ("matmul", "bmm", "einsum"):
        first, second = node.args[:2]
        if re.fullmatch(r"q|query|queries|q_?len|tgt", ast.unparse(first)) and isinstance(second, ast.Name):
            yield _with(node, first, second.id)


@operator("comparison")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and not code.decides(node):
        other = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">", "Eq": "!=", "NotEq": "=="}.get(
            type(node.ops[0]).__name__
        )
        if other:
            yield f"{ast.unparse(node.left)} {other} {ast.unparse(node.comparators[0])}"


@operator("not dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield ast.unparse(node.operand)
    if _called(node) == "logical_not":
        yield ast.unparse(_operands(node)[0])


@operator("mask fill")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("masked_fill", "masked_fill_", "where", "full_like", "full"):
        for x in _operands(node)[1:]:
            if _is_fill(x):
                yield from (_with(node, x, new) for new in ("0.0", "-1.0", "-5.0"))


@operator("mask dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("masked_fill", "masked_fill_"):
        yield ast.unparse(_operands(node)[0])
    if isinstance(node, ast.Call):
        for x in node.keywords:
            if x.arg in ("attn_mask", "key_padding_mask", "mask", "attention_mask") and ast.unparse(x.value) != "None":
                yield _with(node, x.value, "None")
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.Add, ast.BitAnd))
        and not code.decides(node)
        and _MASKING.search(ast.unparse(node.right))
        and not isinstance(node.right, ast.Constant)
    ):
        yield ast.unparse(node.left)


@operator("causal flag")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for x in node.keywords:
            if x.arg == "is_causal" and ast.unparse(x.value) != "False":
                yield _with(node, x.value, "False")


@operator("diagonal")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("triu", "tril"):
        _, *given = _operands(node)
        for step in ("+ 1", "- 1"):
            if given:
                yield _with(node, given[0], f"{ast.unparse(given[0])} {step}")
            else:
                head = ast.unparse(node)[:-1]
                yield f"{head}{'' if head.endswith('(') else ', '}diagonal={step.replace(' ', '')})"


def _after(node: ast.AST, code: Code) -> tuple[ast.stmt, str, str] | None:
    """The next statement, if it takes the softmax of a name that this one assigns; that name, and the weights' name."""
    above = code.parent[node]
    for body in (getattr(above, "body", []), getattr(above, "orelse", [])):
        if isinstance(body, list) and node in body[:-1]:
            later = body[body.index(node) + 1]
            if not (isinstance(later, ast.Assign) and isinstance(later.targets[0], ast.Name)):
                continue
            for x in ast.walk(node):
                if isinstance(x, ast.Assign) and isinstance(x.targets[0], ast.Name):
                    name, said = x.targets[0].id, ast.unparse(later.value)
                    if "softmax" in said and re.search(rf"\b{name}\b", said):
                        return later, name, later.targets[0].id
    return None


@operator("after the softmax")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    """The mask or the bias: two statements change places."""
    if isinstance(node, (ast.Assign, ast.If)) and not getattr(node, "orelse", None):
        found = _after(node, code)
        if found is None:
            return
        later, scores, weights = found
        moved = re.sub(rf"\b{scores}\b", weights, ast.unparse(node))
        if "masked_fill" in moved:
            moved = re.sub(r"(masked_fill_?\(.*), [^,]*\)", r"\1, 0.0)", moved)
        elif not re.search(r"\+|\*", moved) or "@" in moved or "matmul" in moved or "einsum" in moved:
            return
        yield [(node, ast.unparse(later)), (later, moved)]


@operator("mask multiplied")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("masked_fill", "masked_fill_"):
        scores, mask, *_ = _operands(node)
        yield f"{ast.unparse(scores)} * ({ast.unparse(mask)}).logical_not()"


@operator("mask axis")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if not _MASKING.search(ast.unparse(code.statement(node)).partition("\n")[0]):
        return
    if _called(node) == "unsqueeze" and len(_operands(node)) == 2:
        at = _operands(node)[1]
        other = {"1": "2", "2": "1", "-1": "-2", "-2": "-1"}.get(ast.unparse(at))
        if other:
            yield _with(node, at, other)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        parts = [ast.unparse(x) for x in node.slice.elts]
        if "None" in parts and all(x in ("None", ":", "...") for x in parts):
            for i in range(1, len(parts) - 1):
                if {parts[i], parts[i + 1]} == {"None", ":"}:
                    new = [*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]]
                    yield f"{ast.unparse(node.value)}[{', '.join(new)}]"


@operator("heads tiled")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    parts = [ast.unparse(x) for x in _operands(node)]
    if _called(node) == "repeat_interleave" and len(parts) == 3:
        yield f"torch.cat([{parts[0]}] * ({parts[1]}), dim={parts[2]})"
    if _called(node) in ("repeat", "tile"):
        more = [(i, x) for i, x in enumerate(parts[1:]) if x != "1"]
        if len(more) == 1:
            yield f"{parts[0]}.repeat_interleave({more[0][1]}, dim={more[0][0]})"


@operator("rotation")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    pair = _pair(node)
    if pair and isinstance(pair[0], ast.UnaryOp):
        yield _with(node, pair[0], ast.unparse(pair[0].operand))
        yield _reversed(node, pair)
    if isinstance(node, ast.Name) and node.id in ("cos", "sin") and isinstance(code.parent[node], ast.BinOp):
        yield {"cos": "sin", "sin": "cos"}[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        said = ast.unparse(node)
        if "cos" in said and "sin" in said:
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            yield f"{ast.unparse(node.left)} {sign} {ast.unparse(node.right)}"


@operator("offset dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) == "arange":
        numbers = _operands(node)[:2]
        if isinstance(node, ast.Call) and len(node.args) == 2:
            first, last = map(ast.unparse, numbers)
            yield ast.unparse(node).replace(f"({first}, {last}", f"(0, {last} - ({first})", 1)
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for x in parts:
            if isinstance(x, ast.Slice) and x.lower and x.upper and not x.step:
                said = ast.unparse(x)
                yield ast.unparse(node).replace(said, f":{ast.unparse(x.upper)} - ({ast.unparse(x.lower)})", 1)
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and re.search(r"past|offset|start|cache", ast.unparse(node.right))
    ):
        yield ast.unparse(node.left)


@operator("cache order")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    pair = _pair(node)
    if pair and re.search(r"past|cache|prev|mem|state", ast.unparse(node)):
        yield _reversed(node, pair)


@operator("residual dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if (
                _STREAM.match(ast.unparse(one))
                and not isinstance(other, ast.Constant)
                and not re.search(r"pos|emb", ast.unparse(other))
            ):
                yield ast.unparse(other)


@operator("dropout in eval")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) == "dropout":
        for x in _operands(node):
            if ast.unparse(x) == "self.training":
                yield _with(node, x, "True")
    if isinstance(node, ast.IfExp) and ast.unparse(node.test) == "self.training":
        yield ast.unparse(node.body)


@operator("norm axis")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("normalize", "norm", "mean", "var"):
        for x in _operands(node):
            if ast.unparse(x) == "-1":
                yield _with(node, x, "-2")


@operator("detached")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if (
        isinstance(node, ast.Call)
        and re.match(r"self\.\w*(k|v|q|key|value|query|kv|proj|out)\w*\(", ast.unparse(node))
        and not re.search(r"drop|norm|cache|reset|_?mask", _called(node))
    ):
        yield f"{ast.unparse(node)}.detach()"


@operator("window side")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.BitAnd, ast.BitOr))
        and (isinstance(node.left, ast.Compare) or isinstance(node.right, ast.Compare))
    ):
        yield ast.unparse(node.left)
        yield ast.unparse(node.right)
    if _called(node) == "abs" and not code.decides(node):
        yield f"({ast.unparse(_operands(node)[0])})"


@operator("sum or mean")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) in ("sum", "mean") and not re.search(r"pow|square|\*\* 2", ast.unparse(node)):
        copied = copy.deepcopy(node)
        assert isinstance(copied, ast.Call)
        if isinstance(copied.func, ast.Attribute):
            copied.func.attr = {"sum": "mean", "mean": "sum"}[copied.func.attr]
            yield ast.unparse(copied)


@operator("other mask")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and re.search(r"mask|valid|lengths", node.id):
        function = code.function(node)
        assert function is not None
        if code.decides(node):
            return
        for x in function.args.args:
            if x.arg != node.id and re.search(r"mask|valid|lengths", x.arg):
                yield x.arg


@operator("softcap dropped")
def _(node: ast.AST, code: Code) -> Iterator[Edit]:
    if _called(node) == "tanh" and re.search(r"scor|logit|attn|cap", ast.unparse(code.statement(node))):
        yield f"({ast.unparse(_operands(node)[0])})"
