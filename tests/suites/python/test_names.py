"""The names of modules: those that they had before this package had sub-packages work on, and no module imports another in a circle."""

import ast
import base64
import importlib
import itertools
import pickle
import pydoc
import subprocess
import sys
import zlib
from pathlib import Path

import hbmfs
import numpy as np
import pytest
from hbmfs import checkpoints, weights
from hbmfs._moved import MOVED

PACKAGE = Path(hbmfs.__file__).parent
MODULES = {".".join(("hbmfs", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path for path in PACKAGE.rglob("*.py")}

OTHERS = {"deepspeed", "fastsafetensors", "lmcache", "sglang", "transformers", "vllm"}
"""What only test-peers installs."""

WRITTEN = (
    "c-qZX>6X+)6z*A>39GW`AOebL038_=9Tf#sPzgj0i|x|3)#;k4Fx^SMq~gpVt)Nab-HQ9Z4lbx5?#oaA_yRtFkKhA%{DHTsGRlz`uuh*&ZdKj=`)-bOHc+sOy@f&{l?i8cboioDA4vyg"
    "G{(cS*|hd4VXt{d=enclYM|RL_K;dtPR1NPZqXv4!lW<CX>f?6*Xb<IQD!;HH6CJ)v#8juWnM*})1`%kg=6S<3R-zQN@`W3Y&jh|rgD|XQedvDT`|E~74yiDHY~D{ks8PR>0-Z%BZ=a2"
    "jinL`ruDgG$tag87PhpjauSVW5$USS<v2<M8AKs2pfI(k3Lj-5E~HqrG7r-zNwK(9oU2ZQuuS2NaoSqq8U;2Yd4i>`zF%dMrCefJUcFql$_bBR9$L7_E-q4bRUy;zMzsdRcoG*EyJ*{w"
    "GYsf3StcVacU@QF5)Ui1D;`I_NO7ra5{>+<&O^#<WvkeyLywZGifol@<doIp8c(r04`z15+M7Rd8MW~82G-bOnOGsHHDZ-1u^(lj#1+n(tfFOAwG?Y-4IPYvkXJ2_HZ5FP!c}4gbDOX|"
    "tTR2yJ+F7x6z7o~vo!rDoDD7+Rk!NFgv=6-t8=rtZ0*UPxQ4<TY~Wg3^tgh6q$4EE2!e_rY>2t8AQ*`G(_+E2SlANOS3#W=)IPDeC6>5ismUi~b@IHigdw}wp~{O*`dPtsTo)^EREq0M"
    "*lbfV&TrI^ZqyB8K$yPV=wX<PwSw}$NofpoKg{a!q@}4~;pSo|8OS!_me%w!Z1HfbO>kFUx8OFiu<I->{pS=UwpN<h=3%>7*`g+h)g|0+3)P=H8o2Y^{s`R_eYB&2o$6@#-=l%7!VNAJ"
    "!BX5+!rgYe|F>TUqrW!(@<*ZF_j~jBnf~P`CrsX{FL*U0`rK2(E~ij}WBVfs^A#ylYiIsuVYk!abTqNYgDZABo$CEw5BKpV?q|B0<yue=sD54vdu`X{hF{e8V3eSOeY4Q<1q+fo3$5+?"
    "NFmt5eoE#*0}q%9M5aROR<VQ!&(qpXM;0EU`wutph#5UZ*&sxTD62Tc!zvzatK8JuruU+drcb+9@APUN&XU?B9?SQ-bgP&Ia|%wO2?P4HMx2G8-|5Vs-Az<=m@!X+s0!|MWfi6kl*ceK"
    "J4ehs92GeVh9DFQ0uKjgQE(Vz=b@lh5$DFPsaGLjqMi>VnolDUaV9iaqsovpSkG!QU`fIz)ui#Mbu!6(Dr}TPGOU_Y#7<!f@JX%8{nX;2da;n?Y)EzRH70{_2(pRH!{f&=?qR|v0CY}a"
    "GEXQN#vzr^6CMszLgIWtH!3ZWXb$~%;YmTJpYm`-;%LQ`Yb=b$Lp&`ap(A`oklSZHOewcBQ)r5V%GwNF?I?8ouYWkEvYYnMl4w^9E<!x#%$WY^$(rK%5{}!>W@n6>CM(F}1!}UchD-t?"
    "z>6g6K^`+n-<S|D&6ek7Ri0NoysFC6HHFtqdAdw_@VbiN4G(Whyj3wK5*~9#e&25Q{drcet;TW4CnVk};a%J5aeA6~&*^pu;_q`B((})yaG7w24=5z9Ml4J5VF@#avc^14h!b3FFeA5I"
    "kLV-(Q3)U0?Y;y1^;+8QJAF#8^<-ZSwOpIghYO$NY&W7+W}_^i(etSoXyByrQ|D3;=ROn5bv20ySwMfEo3F1FN;Sn7d6X>SA;YP>s&NpiNpzaTZo_VgFLPQMmnqJe*b|-+=e}y`Ayx}2"
    "3DXVv+PLwfI*p<#zHzfAzV+~(nJ7s@1^PbEK}+<dm8`~hsCNrLXt$$k7X3JdpFI4W4gL*vguvb"
)
"""A pickle of before there were sub-packages, compressed: a dataset, streams of it that have given one batch each, a reader, and an error."""


def test_every_public_name_is_there():
    for name in set(hbmfs.__all__) - OTHERS:
        assert getattr(hbmfs, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        hbmfs.nothing  # noqa: B018


@pytest.mark.parametrize("name", sorted(MOVED))
def test_an_older_name_is_the_module_itself(name):
    assert MOVED[name] in MODULES
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as err:
        assert err.name in OTHERS
        return
    assert module is importlib.import_module(MOVED[name]) is getattr(hbmfs, name.removeprefix("hbmfs."))
    assert module.__name__ == module.__spec__.name == MOVED[name]


def test_older_names_work_first_in_a_process():
    program = """
import sys
import hbmfs.mixture, hbmfs
assert hbmfs.mixture is hbmfs.data.mixture and hbmfs.mixture.Mixture is hbmfs.Mixture
from hbmfs.part import Part
from hbmfs import nanogpt, packed
assert (Part, packed.Packed) == (hbmfs.Part, hbmfs.Packed) and nanogpt is hbmfs.integrations.nanogpt
assert hbmfs.token_stream.TokenStream is hbmfs.TokenStream and hbmfs._native.library
from hbmfs.errors import StaleError
from hbmfs.kv import KVStore
from hbmfs.weights import load_safetensors
assert (StaleError, KVStore, load_safetensors) == (hbmfs.StaleError, hbmfs.KVStore, hbmfs.load_safetensors)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    subprocess.run([sys.executable, "-m", "hbmfs.mixture"], check=True)


def test_sub_packages_have_the_names_of_the_modules_that_they_replace():
    assert checkpoints.Checkpoints is hbmfs.Checkpoints
    assert checkpoints.Save is checkpoints.steps.Save
    assert weights.load_safetensors is hbmfs.load_safetensors
    with pytest.raises(AttributeError, match="nothing"):
        checkpoints.nothing  # noqa: B018


def test_help_knows_the_older_names():
    for name in ("hbmfs.token_stream", "hbmfs.checkpoints", "hbmfs.weights"):
        assert "hbmfs." in pydoc.render_doc(name, renderer=pydoc.plaintext).split("DESCRIPTION")[1].split("CLASSES")[0]


def test_pickles_of_before_are_read(source, monkeypatch):
    monkeypatch.chdir(source / "npy")
    found = pickle.loads(zlib.decompress(base64.b85decode(WRITTEN)))
    assert str(found["error"]) == "gone" and type(found["error"]) is hbmfs.StaleError
    tokens = np.load("tokens_00000.npy")
    with found["dataset"] as dataset, found["reader"] as reader, hbmfs.open("tokens_00000.npy", reader=reader) as again:
        assert (dataset.read(0, len(tokens)) == tokens).all() and (again.read(0, len(tokens)) == tokens).all()
        first, second = itertools.islice(hbmfs.TokenStream(again, 2, 16, seed=3), 2)
        assert (next(iter(found["stream"])) == second).all() and not (first == second).all()
        assert next(iter(found["mixture"])).shape == (2, 16)


def imports(path):
    """The modules of the package that a file imports, in functions and for type checkers, too."""
    name = next(name for name, there in MODULES.items() if there == path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*package.split(".")[: len(package.split(".")) + 1 - node.level], *filter(None, [node.module])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            absolute = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not [other for other in absolute if other.partition(".")[0] == "hbmfs"], f"{path}: import what is of hbmfs by a relative name"


def circle(graph):
    """The first circle of a graph, as the nodes on it; None where there is none."""
    done, way = set(), []

    def visit(node):
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return None
        way.append(node)
        found = next(filter(None, map(visit, sorted(graph.get(node, ())))), None)
        way.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(graph))), None)


def room(name):
    return ".".join(name.split(".")[:2])


def test_no_module_is_imported_in_a_circle():
    graph = {name: set(imports(path)) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 200
    found = circle(graph)
    assert found is None, " -> ".join(found)
    # Nor do the sub-packages need each other in a circle; the package itself names what all of them have.
    rooms = {}
    for name, others in graph.items():
        rooms.setdefault(room(name), set()).update(map(room, others - {"hbmfs"}))
    del rooms["hbmfs"]
    found = circle({name: others - {name} for name, others in rooms.items()})
    assert found is None, " -> ".join(found)


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d"}}) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"a"}}) == ["a", "a"]
