"""Tests of the seven files; `python -m pytest beyond/related -k max_margin` runs those of one."""

import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import attention_svm as asv
import in_context as ic
import markov_chain as mc
import max_margin as mm
import next_token as nt
import single_location as sl
import sparse_variables as sv

MODULES = mm, asv, nt, sl, sv, mc, ic
PAGE = Path(__file__).with_name("README.md").read_text("utf-8")


def slopes(loss, w):
    """The slopes of loss at w, in the shape of w, by the complex step."""
    steps = 1e-30j * np.eye(w.size).reshape(-1, *w.shape)
    return np.reshape([loss(w + h).imag / 1e-30 for h in steps], w.shape)


def alike(shown, printed):
    """Whether two lines have the same words, and the same numbers to 3 % or 0.001."""
    number = r"-?\d+\.?\d*(?:e-\d+)?"
    words, others = (re.sub(number, "#", line).split() for line in (shown, printed))
    a, b = (np.array(re.findall(number, line), float) for line in (shown, printed))
    return words == others and np.allclose(a, b, rtol=0.03, atol=0.0011)


def test_the_page_has_all_seven_files_and_they_need_numpy_only():
    assert {*Path(__file__).parent.glob("[!t]*.py")} == {Path(m.__file__) for m in MODULES}
    for name, text in ((m.__name__, Path(m.__file__).read_text("utf-8")) for m in MODULES):
        assert f"\npython beyond/related/{name}.py\n" in PAGE and f"figures/{name}.png" in PAGE
        assert {"functools", "itertools", "numpy", "sys"} >= {*re.findall(
            r"^(?:import|from) (\w+)", text, re.M)}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_commands_explain_themselves_work_alone_and_print_what_the_page_shows(module, tmp_path):
    (tmp_path / "alone.py").write_bytes(Path(module.__file__).read_bytes())
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    run = partial(subprocess.run, cwd=tmp_path, encoding="utf-8", capture_output=True)
    for wrong in "--help", "x.xyz":
        done = run([sys.executable, "alone.py", wrong])
        assert (done.returncode, done.stdout, done.stderr) == (1, "", module.__doc__ + "\n")
    name = f"{module.__name__}.py"
    assert f"\n    python {name} [picture.png]  (MIT licence, " in module.__doc__
    shown = PAGE.split(f"related/{name}")[1].split("```text\n")[1].split("```")[0].splitlines()
    printed = run([sys.executable, "alone.py"]).stdout.splitlines()
    assert "..." in shown or len(shown) == len(printed)
    rest = iter(printed)                                # lines agree in their order
    assert [s for s in shown if s != "..." and not any(alike(s, line) for line in rest)] == []
    assert module is not ic or re.search(r"\+1=4\.6 .* from n=75\n", "\n".join(printed))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_pictures_have_titles_and_axes(module, tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(sl, "descend", partial(sl.descend, steps=100))      # short
    module.figure(tmp_path / "x.png")
    panels = plt.gcf().axes
    assert all(panel.get_xlabel() and panel.get_title() for panel in panels)
    assert panels[0].get_ylabel() and (tmp_path / "x.png").stat().st_size > 10_000
    if module is asv:                                   # K and Q penalized: near W_nuc
        assert panels[1].get_title().endswith("nuc") and panels[1].lines[2].get_ydata()[-1] < 3


def test_max_margin_the_direction_is_that_of_steepest_descent():
    p, K, G = map(np.random.default_rng(0).standard_normal, ((3, 4), (3, 5, 4), (3, 5)))
    for i in range(3):
        def loss(p):
            s = np.exp(K[i] @ p)
            return np.log(1 + np.exp(-s @ G[i] / s.sum()))

        g = slopes(loss, p[i])
        np.testing.assert_allclose(mm.direction(p, K, G)[i], -g / np.linalg.norm(g), rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_max_margin_svms_have_the_largest_margins_and_locally_optimal_tokens_beat_rivals(seed):
    K, phi = np.random.default_rng(seed).standard_normal((6, 2)), np.linspace(0, 2 * np.pi, 50_000)
    for t in range(6):
        D, p = K[t] - np.delete(K, t, axis=0), mm.svm(K, t)
        margin = (D @ [np.cos(phi), np.sin(phi)]).min(axis=0).max().clip(0)
        assert abs(margin - (0 if p is None else 1 / np.linalg.norm(p))) < 6e-4
    K = np.array([[1, 0], [0, 1], [0, -1], [-0.001, 0]])                # token 3: 1.001 behind
    assert mm.locally_optimal(K, np.array([1, 0, 0, 2]), 0)
    assert not mm.locally_optimal(K, np.array([1, 0, 1, 0]), 0)         # a tie


@pytest.mark.parametrize("G, optimal, near, far", [
    ((1, 0.9, 0), [0, 1], [0, 0, 0, 0, 1, 1], 1), ((1, 0.9, 0.899), [0, 1], [0] * 6, 1),
    ((1, 0.9, 0.901), [0], [0] * 6, 0), ((0.5, 0.9, 0.901), [2], [2] * 6, 2),
    ((0.5, 0.9, 0.899), [1], [1] * 6, 1)])
def test_max_margin_far_out_a_query_stays_only_at_a_locally_optimal_token(G, optimal, near, far):
    assert [t for t in range(3) if mm.locally_optimal(mm.KEYS, np.array(G), t)] == optimal
    p = mm.descend(mm.STARTS, mm.KEYS, np.array(G), 3000)[-1]
    assert [*mm.selected(p, mm.KEYS)] == [*near, far]
    svms = np.array([mm.svm(mm.KEYS, t) for t in (*near, far)])
    assert abs(mm.angle(p) - mm.angle(svms)).max() < 2


def test_max_margin_and_next_token_demos_print_what_the_page_claims(capsys):
    mm.demo(1, 200)
    nt.demo(3)
    printed = capsys.readouterr().out
    rows = re.findall(r"\n(?:circle|plane) +\S+" + r" +(\d+)" * 5 + r" +(\S+)", printed)
    grows, start, optimal, best_at_start, best, off = np.array(rows, float).T
    assert [*grows[:2]] == [200] * 2 and 140 < grows[2] < 190           # of 200
    assert (optimal == grows).all() and (start < 100).all() and (best_at_start < 50).all()
    within, across = map(float, re.findall(r"at \w+ (0\.\d{4})", printed))     # SCCs
    assert 0.0001 < within < 0.002 and 0.6 < across < 0.75
    assert min(map(float, re.findall(r" (\d\.\d{4})", printed.split("cosines")[1])[:4])) > 0.9985


@pytest.mark.parametrize("arm", asv.ARMS)
def test_attention_svm_training_follows_the_slopes_of_loss_and_penalty(arm):
    K, Q, X, Z, G = asv.instances(1, 2, 3, 4, 5)
    start, mu = K @ Q.transpose(0, 2, 1), np.array([0.03, 0.1])[:, None, None]
    assert (asv.train(arm, K, Q, X, Z, G, mu, 0) == start).all()        # arms share their start
    for i, W in enumerate(asv.train(arm, K, Q, X, Z, G, mu, 1)):
        def loss(K, Q):
            s = np.exp(np.einsum("itd,de,ie->it", X[i], K @ Q.T, Z[i]))
            f = (s * G[i]).sum(axis=1) / s.sum(axis=1)
            square = (K ** 2).sum() + (Q ** 2).sum() if "+" in arm[1] else ((K @ Q.T) ** 2).sum()
            return np.log(1 + np.exp(-f)).mean() + mu[i, 0, 0] * square

        A, B = (start[i], np.eye(5)) if arm[0] == "W" else (K[i], Q[i])
        dA, dB = slopes(lambda A: loss(A, B), A), slopes(lambda B: loss(A, B), B)
        A_new, B_new = (M - 0.1 * dM / np.linalg.norm(dM) for M, dM in ((A, dA), (B, dB)))
        np.testing.assert_allclose(W, A_new @ (B if arm[0] == "W" else B_new).T, atol=1e-11)


def test_attention_svm_svms_are_those_found_by_hand_and_angles_halve_as_exponents_double():
    delta = np.array([[1, 0], [np.cos(1), np.sin(1)]])                  # tokens delta_i and 0
    X, selected = np.stack([delta, 0 * delta], axis=1)[None], np.array([[[True, False]] * 2])
    W_F, W_nuc = (asv.svm(selected, X, np.eye(2)[None], least)[0] for least in ("F", "nuc"))
    np.testing.assert_allclose(W_F, delta.T, atol=1e-3)
    np.testing.assert_allclose(W_nuc.T, [delta.sum(axis=0) / (1 + np.cos(1))] * 2, atol=1e-3)
    for arm, near in zip(asv.ARMS, (0, 1, 0)):
        angles, best = asv.experiment(arm, 2, 4)
        ratios = angles[near, :-2] / angles[near, 1:-1]
        assert (1.7 < ratios).all() and (ratios < 2.6).all() and angles[near, -2] < 2.5
        assert (angles[1 - near, :-1] > 25).all() and (best > 2).all()


def test_next_token_gradient_is_the_slope_of_the_loss():
    rng = np.random.default_rng(0)                                      # tokens occur twice
    w, x = rng.standard_normal(5), rng.integers(5, size=(9, 5))
    y = x[:, 2]

    def loss(w):
        s, hit = np.exp(w[x]), x == y[:, None]
        return -np.log((s * hit).sum(axis=1) / s.sum(axis=1)).mean()

    np.testing.assert_allclose(nt.gradient(w, x, y), slopes(loss, w), rtol=1e-10)


@pytest.mark.parametrize("samples, expected, shares", [
    (nt.SETS[0], [1, 1, 0, -1, -1], (3 / 4, 1 / 4, 0, 0)),
    (nt.SETS[1], [1.8, 0.8, -0.2, -1.2, -1.2], (1, 0, 0, 0)),
    (nt.SETS[2], [0.4, 0.4, 0.4, -0.6, -0.6], (1 / 3, 1 / 3, 1 / 3, 0)),
    (nt.SETS[3], [0.4, 0.4, 0.4, -0.6, -0.6], (1 / 2, 1 / 4, 1 / 4, 0)),
    ("abp>a bcp>b cdp>c dap>d", [0.2, 0.2, 0.2, 0.2, -0.8], [1 / 4] * 4),    # a longer cycle
    ("acp>a abp>a bcp>b", [1.25, 0.25, -0.75, 0, -0.75], (1, 0, 0, 0))])      # a > c not needed
def test_next_token_w_turns_to_the_svm_and_attention_mixes_by_counts(samples, expected, shares):
    w, w_svm = nt.train(*nt.read(samples))[-1], nt.svm(*nt.read(samples))
    np.testing.assert_allclose(w_svm, expected, atol=1e-9)
    assert w @ w_svm / np.linalg.norm(w) / np.linalg.norm(w_svm) > 0.995
    np.testing.assert_allclose(nt.attention(w, nt.read("abcdp>p")[0])[0, :4], shares, atol=2e-3)


def test_single_location_gradients_of_the_risk_equal_the_complex_step(monkeypatch):
    def erf(x):                                         # also for the complex step
        slope = 2 / math.sqrt(math.pi) * np.exp(-x.real ** 2)
        return np.vectorize(math.erf)(x.real) + 1j * np.imag(x) * slope

    np.testing.assert_allclose(sl.erf(np.r_[-6:6:999j]), erf(np.r_[-6:6:999j]).real, atol=2e-7)
    monkeypatch.setattr(sl, "erf", erf)
    w, lam = np.random.default_rng(0).standard_normal((2, 4, 3)) / 5, np.array([0.1, 0.4, 1])
    g = np.real(sl.risk(*w + 0j, lam)[1:])
    slope = slopes(lambda w: sl.risk(*w, lam)[0].sum(), w)
    np.testing.assert_allclose(g, slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lam, L, d", [(0.1, 10, 400), (1, 10, 400), (0.3, 4, 50)])
def test_single_location_samples_have_the_risk(lam, L, d):
    k, v = (sl.unit(w) for w in np.random.default_rng(3).standard_normal((2, 4, 1)))
    X = np.random.default_rng(1).standard_normal((100_000, L, 4))
    X[:, 0] = math.sqrt(0.5) * X[:, 0] + [math.sqrt(d / 2), 0, 0, 0]
    f = (sl.erf(lam * (X @ k)[..., 0]) * (X @ v)[..., 0]).sum(axis=1)
    excess = (f - X[:, 0, 1]) ** 2 - sl.risk(k, v, np.array([lam]), L, d)[0][0]
    assert abs(excess.mean()) < 4 * excess.std() / 1e5 ** 0.5


def test_single_location_arms_share_starts_and_steps_and_end_where_the_page_says():
    path, then = sl.experiment(1)                       # (times, k or v, 4, arms, runs)
    on_k, on_v = abs(path[-1, 0, 0]) > 0.9, abs(path[-1, 1, 1]) > 0.9
    np.testing.assert_allclose(100 * on_v.mean(axis=1), [100, 54, 75, 95, 52, 98], atol=8)
    assert on_v[0].all() and (on_k[:5] == on_v[:5]).all() and not on_k[5].any()
    assert ((abs(path[-1, 0, 1]) > 0.9) | on_v)[:5].all()               # or else k finds v*
    assert (then[0] == path[-1, :, :, 5:]).all() and (abs(then[-1, 0, 0]) > 0.9).mean() > 0.95
    k, v = path[0]
    for at, overlap in (1, k[1]), (2, v[0]), (3, (k * v).sum(axis=0)):
        assert [*(abs(overlap).max(axis=1) > 1e-9)] == [arm[at] for arm in sl.ARMS.values()]
        assert 0.7 < sl.D * np.square(overlap[4]).mean() < 1.3          # uniform on the sphere
    for ratio in k[0] / k[2], v[1] / v[3], (k[1] / k[0])[[1, 4, 5]], (v[0] / v[3])[[2, 4, 5]]:
        assert np.ptp(ratio, axis=0).max() < 1e-9
    assert abs(path[:, 0, 1, 0]).max() < 1e-9 and abs(path[:, 1, 0, 0]).max() < 1e-9   # manifold


@pytest.mark.parametrize("softmax", [True, False])
def test_sparse_variables_trains_along_the_slopes_of_the_loss_of_each_trial(softmax):
    X, y = (z.astype(float) for z in sv.sample(np.random.default_rng(0), 2, 9, 5))
    for i in range(2):
        def weights(p):                                 # p: u, b, c
            return p[6] * np.exp(p[:5]) / np.exp(p[:5]).sum() if softmax else 0.2 + p[:5]

        def loss(p):
            f = p[5] + X[i] @ weights(p)
            return (np.log(1 + np.exp(f)) - y[i, :, 0] * f).mean()

        p = np.array([0., 0, 0, 0, 0, 0, 1])
        for steps in 1, 2, 3:
            p = p - 0.5 * slopes(loss, p)
            w, b = sv.train(softmax, X, y, steps, 0.5)
            np.testing.assert_allclose([*w[i, :, 0], b[i, 0, 0]], [*weights(p), p[5]], rtol=1e-10)


@pytest.mark.parametrize("norm, positive, x, expected", [
    (1, False, [3, 1], [1 / 3, 0]), (2, False, [3, 1], [0.3, 0.1]), (1, True, [1, -3], [1, 0]),
    (2, True, [3, -1], [1 / 3, 0]), (1, False, [1, -3], [0, -1 / 3])])
def test_sparse_variables_the_least_norms_are_those_found_by_hand(norm, positive, x, expected):
    X, y = np.array([[x, np.negative(x)]], float), np.array([[[1.0], [0.0]]])
    for shift in 0, 2:                                  # b costs nothing
        w, b = sv.least(norm, positive, X + shift, y, 3000)
        answer = [*expected, -shift * sum(expected)]
        np.testing.assert_allclose([*w[0, :, 0], b[0, 0, 0]], answer, atol=1e-3)


def test_sparse_variables_half_of_the_labels_are_one_and_these_are_the_and_of_three_bits():
    X, y = sv.sample(np.random.default_rng(0), 3, 2000, 6)
    assert abs(y.mean() - 0.5) < 0.03 and (y[..., 0] == (X[..., :3] > 0).all(axis=2)).all()


def test_markov_chain_attention_is_the_chain_weighted_by_the_counts_of_which_two_are_by_hand():
    rng = np.random.default_rng(0)
    E, W, x = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)) / 8, rng.integers(5, size=9)
    chain = mc.ccmc(np.exp(E @ W.T @ E.T), np.bincount(x, minlength=5), x[-1])
    np.testing.assert_allclose(mc.attention(E, W, x), chain, rtol=1e-12)
    for arm, share in ("0.8 to itself", 11 / 30), ("0.8 to itself, not counted", 0.38):
        shares = mc.generate(0, mc.ARMS[arm][0], 40_000, 2, mc.ARMS[arm][1])
        assert abs(shares[-1].mean() - share) < 0.004                   # of token 1


def test_markov_chain_shares_fall_if_tokens_or_pairs_prefer_themselves_and_samples_count(capsys):
    mc.demo(1, 300)
    rows = re.findall(r"(-?\d\.\d\d) +(-?\d\.\d{3}) \(\S+\) +(\d+)", capsys.readouterr().out)
    derived, powers, won = np.array(rows, float).T
    np.testing.assert_allclose(powers, [-0.76, -0.27, 0, -0.73, 0], atol=0.04)
    np.testing.assert_allclose(derived, powers, atol=0.1)
    assert ((won > 200) == (powers < -0.1)).all() and (won[powers > -0.1] == 0).all()


def test_in_context_gradients_of_attention_equal_the_complex_step():
    rng = np.random.default_rng(0)
    X, y, x, t = ic.sample(rng, 3, 4, 0.6)
    w = rng.standard_normal((ic.D + 2, ic.D + 1))
    Z, z = np.concatenate([X, y[..., None]], 2), np.concatenate([x, 0 * x[:, :1]], 1)

    def loss(w):
        f = np.einsum("bi,ij,bnj,bnk,k->b", z, w[:-1], Z, Z, w[-1]) / 4
        return ((f - t) ** 2).mean()

    _, dA, dh = ic.attention(w[:-1], w[-1], X, y, x, t)
    np.testing.assert_allclose(np.vstack([dA, dh]), slopes(loss, w), rtol=1e-10)


@pytest.mark.parametrize("arm", ic.ARMS.values())
def test_in_context_the_best_step_has_its_risk_and_trained_attention_reaches_it(arm):
    X, y, x, t = ic.sample(np.random.default_rng(0), 100_000, 5, *arm)
    assert abs((X * x[:, None]).mean() - arm[0] * (not arm[1])) < 0.01 and abs(X.std() - 1) < 0.01
    w, L = ic.best_step(5, *arm)
    step = (x * (y[:, None] @ X)[:, 0]).sum(axis=1) / 5
    for difference in (w * step - t) ** 2 - L, step * (w * step - t):   # w has the least risk, L
        assert abs(difference.mean()) < 4 * difference.std() / 1e5 ** 0.5
    above, error = ic.compare(5, *arm, seed=1)
    assert -2 * error < above < 0.06 and 0.003 < error < 0.01
    assert [ic.worth(7), ic.best_step(7)[1]] == pytest.approx([1, 10 - 70 / 18])
    assert ic.worth(2000, 0.06, d=1000) == pytest.approx(4.6, rel=0.01) and ic.worth(5, above=1) < 1
    assert ic.worth(74, 0.6) > 1 > ic.worth(75, 0.6) and ic.worth(5, 0.6, True) < 0.7
