"""Tests of the seven files:  python -m pytest beyond/related/test_related.py"""

import math
import re
from itertools import product
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


def slopes(loss, w):
    """The slopes of loss at w, in the shape of w, by the complex step."""
    steps = 1e-30j * np.eye(w.size).reshape(-1, *w.shape)
    return np.reshape([loss(w + h).imag / 1e-30 for h in steps], w.shape)


def test_the_readme_has_all_seven_files_and_they_need_numpy_only():
    folder = Path(__file__).parent
    readme, files = (folder / "README.md").read_text("utf-8"), [*folder.glob("[!t]*.py")]
    for file in files:
        assert f"\npython beyond/related/{file.name}\n" in readme and f"{file.stem}.png)" in readme
        assert {"functools", "itertools", "math", "numpy", "sys"}.issuperset(re.findall(
            r"^(?:import|from) (\w+)[\w.]*(?: as \w+| import .*)?$", file.read_text("utf-8"), re.M))
    assert len(files) == 7


PAGE = {"max_margin": (mm, "In all {:.0f} random", "in {:.0f}/"),
        "attention_svm": (asv, "ends {:.1f}/3.1", "ends {:.1f}/3.4", "ends {:.1f}/3.5", "to {:.1f}/10",
                          "rank is {:.2f}/"),
        "next_token": (nt, "is {:.4f} after", "SVM is {:.4f} after", "and {:.4f} after", "most {:.4f}/"),
        "markov_chain": (mc, "power {:.3f}/", "leads in {:.0f}/", "power is {:.3f}/", "is {:.3f}/-0.002",
                         "0.9 in {:.0f}/"),
        "sparse_variables": (sv, "needs {:.0f}/15/15 samples", "and {:.0f}/34/33", "needs {:.0f}/37/36",
                             "need {:.0f}/127/143", "need {:.0f}/109/91", "like $T$, {:.0f}/666/732"),
        "single_location": (sl, "in all {:.0f} (", "alone: $k \\cdot v^\\star$ {:.0f}/", "$v \\cdot k^\\star$ {:.0f}/",
                            "cdot v$ {:.0f}/", "in {:.0f}/14/17", "in {:.0f}/27/27"),
        "in_context": (ic, "risk {:.4f}, the", "step {:.4f}.", "mean has risk {:.4f}.",
                       "ends {:.3f}/0.002", "only {:.3f}/0.013", "ends {:.3f}/0.071")}


@pytest.mark.parametrize("name", PAGE)
def test_numbers_of_seed_0_are_those_of_the_page(name):
    page = (Path(__file__).parent / "README.md").read_text("utf-8").split(f"\n## {name}.py")[1]
    section, (module, *texts) = " ".join(page.split("\n## ")[0].split()), PAGE[name]
    rows = module.demo()
    if name == "markov_chain":
        rows = [*rows[0][:2], rows[1][0], *rows[2][::2]]
    if name == "sparse_variables":
        rows = [rows["softmax"][0], *(row[-1] for row in rows.values())]
    if name == "in_context":
        rows = [abs(number) for number in rows]
    for text, number in zip(texts, rows):
        assert text.format(number) in section


# sparse_variables.py

@pytest.mark.parametrize("head", sv.HEADS)
def test_sparse_variables_gradients_of_each_head_equal_the_complex_step(head):
    rng = np.random.default_rng(0)
    X, y = (z.astype(float) for z in sv.sample(rng, 2, 9, 5))
    p = 1.5 * rng.standard_normal((2, 7, 1))

    def loss(p):                                        # the sum of both trials' losses
        e = np.exp(p[:, :5])
        a = {"softmax": e / e.sum(axis=1, keepdims=True), "exp": e / 5}
        a["signed"] = (1 + np.sinh(p[:, :5])) / 5
        f = p[:, 5:6] + X @ (p[:, 6:] * a.get(head, (1 + p[:, :5]) / 5))
        return (np.log(1 + np.exp(f)) - y * f).mean(axis=1).sum()

    L, g = sv.loss(head, p, X, y)
    assert L == pytest.approx(loss(p) / 2)
    np.testing.assert_allclose(g, slopes(loss, p), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("head", sv.HEADS)
def test_sparse_variables_heads_start_alike_and_all_fit_equally_well(head, monkeypatch):
    X, y = sv.sample(np.random.default_rng(0), 20, 500, 6)
    assert abs(y.mean() - 0.5) < 0.02 and (y[..., 0] == X[..., :3].all(axis=2)).all()
    np.testing.assert_allclose(sv.attention(head, np.zeros((1, 8, 1)))[0], 1 / 8)
    calls, loss = [], sv.loss
    monkeypatch.setattr(sv, "loss", lambda *args: calls.append(0) or loss(*args))
    w, b = sv.train(head, X, y, 0.01)
    assert len(calls) < 1500
    assert 0.008 < np.log(1 + np.exp((1 - 2 * y) * (b + X @ w))).mean() < 0.01
    assert np.sign(w.min()) == {"positive": 0, "direct": -1, "signed": -1}.get(head, 1)


def test_sparse_variables_m90_is_where_the_share_crosses_90_percent(monkeypatch):
    monkeypatch.setattr(sv, "trial", lambda head, T, m, seed, goal: (0.9 * m / T, None))
    np.testing.assert_allclose(sv.needed("any", 0, (40, 40, 90), 0.01), [40, 40, 90])


@pytest.mark.parametrize("seed", [11, 12])
def test_sparse_variables_it_is_the_exponential_and_a_sign_helps(seed):
    exp, signed, positive = (sv.needed(h, seed, (64, 512), 0.01) for h in ("exp", "signed", "positive"))
    softmax, direct = (sv.needed(head, seed, (16, 64), 0.01) for head in ("softmax", "direct"))
    assert softmax[1] / softmax[0] < 1.8 < 2.7 < direct[1] / direct[0]     # T: four times
    assert max(exp[1] / exp[0], signed[1] / signed[0]) < 2.6 < 3 < positive[1] / positive[0]   # 8
    assert signed[1] > 2.5 * exp[1]
    assert sv.trial("direct", 256, 500, seed, 0.01)[0] < 0.76       # known samples: 0.8 or more


# single_location.py

def test_single_location_gradients_of_the_risk_equal_the_complex_step(monkeypatch):
    def erf(x):                                         # also for the complex step
        slope = 2 / math.sqrt(math.pi) * np.exp(-x.real ** 2)
        return np.vectorize(math.erf)(x.real) + 1j * x.imag * slope

    monkeypatch.setattr(sl, "erf", erf)
    w, lam = np.random.default_rng(0).standard_normal((2, 4, 3)) / 2, np.array([0.1, 0.4, 1])
    w[:, 0] *= 0.3
    g = np.real(sl.risk(*w + 0j, lam)[1:])
    slope = slopes(lambda w: sl.risk(*w, lam)[0].sum(), w)
    np.testing.assert_allclose(g, slope, rtol=1e-9, atol=1e-12)


def test_single_location_samples_have_the_risk():
    k, v = (sl.unit(w) for w in np.random.default_rng(3).standard_normal((2, 4, 1)))
    X = np.random.default_rng(1).standard_normal((100_000, sl.L, 4))
    X[:, 0] = sl.G * X[:, 0] + [sl.M, 0, 0, 0]
    for lam in 0.1, 0.4, 1:
        f = (sl.erf(lam * (X @ k)[..., 0]) * (X @ v)[..., 0]).sum(axis=1)
        errors = (f - X[:, 0, 1]) ** 2
        R = sl.risk(k, v, np.array([lam]))[0][0]
        assert abs(errors.mean() - R) < 4 * errors.std() / 1e5 ** 0.5 < 0.05 * R


def test_single_location_the_risk_of_k_equal_to_v_is_that_of_independent_terms():
    (x, p), k, n = np.polynomial.hermite_e.hermegauss(60), np.eye(4)[2, :, None], sl.L - 1
    for lam in 0.1, 0.4, 1:
        terms = [sl.erf(lam * s * x) * s * x for s in (sl.G, 1)]        # of x_0 and of the others
        (a, b), (aa, bb) = ([p @ f ** power / p.sum() for f in terms] for power in (1, 2))
        R = 0.5 + aa + n * (bb + 2 * a * b + (n - 1) * b ** 2)
        np.testing.assert_allclose(sl.risk(k, k, lam)[0], R, rtol=1e-5)


def test_single_location_below_009_the_exchanged_end_is_the_better():
    assert np.subtract(*sl.ends(0.092)) < 0 < np.subtract(*sl.ends(0.089))


@pytest.mark.parametrize("seed", [11, 12])
def test_single_location_the_manifold_is_never_left_and_k_is_found_there(seed):
    path = sl.experiment(seed)
    kappa, eta = abs(path[-1, 0, :2])
    assert abs(path[:, 0, 1, 0]).max() < 1e-9 and abs(path[:, 1, 0, 0]).max() < 1e-9
    assert np.ptp(path[0, 0, 0] / path[0, 0, 2], axis=0).max() < 1e-9          # the same starts
    assert np.ptp(path[0, 1, 1] / path[0, 1, 3], axis=0).max() < 1e-9
    R = sl.risk(*path[-1, :, :, [0, 4]].transpose(1, 2, 0, 3).reshape(2, 4, -1), 0.1)[0]
    assert (kappa[0] > 0.97).all() and R[:30].max() < 0.114
    found, exchanged = (kappa > 0.9).sum(axis=1), (eta > 0.9).sum(axis=1)
    assert (found + exchanged == 30).all() and found[4] < 18 < 20 < found[1] < 25 < found[5]
    assert max(found[2:4]) < 20
    k, v = path[0].reshape(2, 4, -1)
    lam = np.repeat([0.1] * 5 + [1.0], sl.RUNS)
    for t in range(100):                                # k and v move at the same time
        _, dk, dv = sl.risk(k, v, lam / (1 + 6e-4 * t * (lam > 0.5)))
        k, v = (sl.unit(w - 4e-3 * (g - (w * g).sum(axis=0) * w)) for w, g in ((k, dk), (v, dv)))
    np.testing.assert_allclose(path[1].reshape(2, 4, -1), [k, v], atol=1e-9)


# in_context.py

def test_in_context_gradients_of_attention_equal_the_complex_step():
    rng = np.random.default_rng(0)
    X, y, x, t = ic.sample(rng, 3, "normal")
    w = rng.standard_normal((7, 6))
    Z, z = np.concatenate([X, y[..., None]], 2), np.concatenate([x, 0 * x[:, :1]], 1)

    def loss(w):
        f = np.einsum("bi,ij,bnj,bnk,k->b", z, w[:-1], Z, Z, w[-1]) / ic.N
        return ((f - t) ** 2).mean()

    g = np.vstack(ic.gradients(w[:-1], w[-1], X, y, x, t))
    np.testing.assert_allclose(g, slopes(loss, w), rtol=1e-10)


@pytest.mark.parametrize("tasks", ic.TASKS)
def test_in_context_steps_have_the_risk_for_all_tasks_and_the_best_is_least(tasks):
    X, y, x, t = ic.sample(np.random.default_rng(0), 100_000, tasks)
    beta = (np.linalg.pinv(X[:20_000]) @ y[:20_000, :, None])[..., 0]
    mean = ic.MEAN[:, 0] * (tasks == "with a mean")
    assert abs(beta.mean(axis=0) - mean).max() < 0.03 and abs(beta.T @ beta / 20_000 - np.eye(5)).max() < 0.1
    for W, b, C in (ic.BEST, 0, np.eye(5)), (ic.PLAIN, 0, np.eye(5)), (ic.FROM_MEAN, mean, ic.TASKS[tasks]):
        errors = (ic.step(W, X, y - X @ (mean * (b is mean)), x) + x @ (mean * (b is mean)) - t) ** 2
        assert abs(errors.mean() - ic.risk(W, C)) < 4 * errors.std() / 100_000 ** 0.5
    for E in np.random.default_rng(1).standard_normal((20, 5, 5)) / 100:
        assert ic.risk(ic.BEST) < ic.risk(ic.BEST + E)
    assert ic.risk(ic.PLAIN) < min(ic.risk(0.99 * ic.PLAIN), ic.risk(1.01 * ic.PLAIN))
    np.testing.assert_allclose(ic.BEST, np.linalg.inv(1.1 * ic.S + np.trace(ic.S) / 10 * np.eye(5)))


@pytest.mark.parametrize("seed", [11, 12])
def test_in_context_attention_is_the_best_step_unless_tasks_have_a_mean(seed):
    (away, above, error), skewed, mean = (ic.compare(ic.train(t, seed)[-1], t) for t in ic.TASKS)
    assert away < 0.01 and abs(above - away) < 4 * error
    assert mean[0] > 0.05 and mean[1] < -5 * mean[2] and mean[1] < 2.5 * skewed[1]


# markov_chain.py

def test_markov_chain_attention_is_the_chain_weighted_by_the_counts():
    rng = np.random.default_rng(0)
    E, W, x = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)) / 8, rng.integers(5, size=9)
    weights = np.exp(np.einsum("jd,de,ie->ij", E, W, E))
    q = np.bincount(x, minlength=5) * weights[x[-1]]
    chain = mc.ccmc(mc.base_chain(E, W), np.bincount(x, minlength=5), x[-1])
    np.testing.assert_allclose(chain, q / q.sum(), rtol=1e-9)
    np.testing.assert_allclose(mc.attention(E, W, x), q / q.sum(), atol=1e-12)


@pytest.mark.parametrize("counts", [True, False])
def test_markov_chain_texts_are_what_attention_samples(counts):
    P, mean = np.array([[0.7, 0.3], [0.1, 0.9]]), 0
    for text in product(range(2), repeat=4):
        x, chance = [1, 0], 1
        for token in text:
            prompt = x if counts else [1 - x[-1], x[-1]]                # each token once
            chance *= mc.attention(np.eye(2), np.log(P).T, prompt)[token]
            x = [*x, token]
        mean += chance * np.mean(x)
    assert abs(mc.generate(0, P, 40_000, 4, counts)[-1].mean() - mean) < 0.004


@pytest.mark.parametrize("seed", [11, 12])
def test_markov_chain_the_winner_takes_all_if_tokens_prefer_themselves_and_counts_are_used(seed):
    powers = [mc.power(mc.generate(seed, P, 300, 5000, counts)).mean() for P, counts in mc.RUNS.values()]
    assert -0.85 < powers[0] < -0.65 and max(abs(power) for power in powers[1:]) < 0.02
    np.testing.assert_allclose(mc.power(np.arange(1, 1001)[:, None] ** np.array([-0.5, -0.7])), [-0.5, -0.7])
    first = [mc.generate(seed, mc.P, 300, 1, counts) for counts in (True, False)]
    assert (first[0] == first[1]).all()                 # the same stream


# attention_svm.py

@pytest.mark.parametrize("arm", asv.ARMS)
def test_attention_svm_training_follows_the_slopes_of_loss_and_penalty(arm):
    (X, Z, G), K, Q = asv.instance(1, 3, 4, 5)
    if arm == "W":
        K, Q = K @ Q.T, np.eye(5)

    def loss(K, Q):
        s = np.exp(np.einsum("itd,de,ie->it", X, K @ Q.T, Z))
        f = (s * G).sum(axis=1) / s.sum(axis=1)
        penalty = (K ** 2).sum() + (Q ** 2).sum() if arm == "KQ" else ((K @ Q.T) ** 2).sum()
        return np.log(1 + np.exp(-f)).mean() + 0.03 * penalty

    dK, dQ = slopes(lambda K: loss(K, Q), K), slopes(lambda Q: loss(K, Q), Q)
    K_new, Q_new = (M - 0.1 * dM / np.linalg.norm(dM) for M, dM in ((K, dK), (Q, dQ)))
    expected = K_new @ (Q if arm == "W" else Q_new).T
    np.testing.assert_allclose(asv.train(arm, K, Q, X, Z, G, 0.03, 1), expected, atol=1e-11)


def test_attention_svm_the_direction_is_exact_where_attention_underflows():
    M, _ = asv.descent(np.diag([2000.0, 0]), np.eye(2)[None], np.eye(2)[:1], np.eye(2)[:1])
    np.testing.assert_allclose(M / abs(M).max(), [[1, 0], [-1, 0]], rtol=1e-12)


def test_attention_svm_both_svms_of_two_samples_are_those_found_by_hand(monkeypatch):
    delta = np.array([[1, 0], [np.cos(1), np.sin(1)]])                  # tokens delta_i and 0
    data = (np.stack([delta, 0 * delta], axis=1), np.eye(2), None), None, None
    monkeypatch.setattr(asv, "instance", lambda seed: data)
    mean = delta.sum(axis=0) / (1 + np.cos(1))
    np.testing.assert_allclose(asv.svm("hand", (0, 0), "fro"), delta.T, atol=1e-3)
    np.testing.assert_allclose(asv.svm("hand", (0, 0), "nuc"), np.outer(mean, [1, 1]), atol=1e-3)


@pytest.mark.parametrize("seed", [11, 12])
def test_attention_svm_what_is_penalized_decides_which_norm_is_least(seed):
    for arm, mu, least in ("W", 1e-16, 0), ("product", 1e-16, 0), ("KQ", 1e-16, 1), ("KQ", 0, 1):
        angles, ranks = asv.experiment(arm, mu, seed, 2)
        assert angles[:, least].mean() < (7 if mu else 20) < 25 < angles[:, 1 - least].mean()
        assert (ranks[:, 1] == 6).all() and (ranks[:, 2] < 6).all()


# next_token.py

def test_next_token_gradient_is_the_slope_of_the_loss():
    rng = np.random.default_rng(0)                                      # tokens occur twice
    w, x = rng.standard_normal(5), rng.integers(5, size=(9, 5))
    y = x[:, 2]

    def loss(w):
        s, hit = np.exp(w[x]), x == y[:, None]
        return -np.log((s * hit).sum(axis=1) / s.sum(axis=1)).mean()

    np.testing.assert_allclose(nt.gradient(w, x, y), slopes(loss, w), rtol=1e-10)


@pytest.mark.parametrize("samples, expected", [
    (nt.SAMPLES, [1, 1, 0, -1, -1]), (nt.ACYCLIC, [1.8, 0.8, -0.2, -1.2, -1.2]),
    (["abp a", "bcp b", "cdp c", "dap d"], [0.2, 0.2, 0.2, 0.2, -0.8]),         # a longer cycle
    (["acp a", "abp a", "bcp b"], [1.25, 0.25, -0.75, 0, -0.75])])      # a > c is not needed
def test_next_token_svms_are_those_found_by_hand(samples, expected):
    np.testing.assert_allclose(nt.svm(*nt.read(samples)), expected, atol=1e-9)


@pytest.mark.parametrize("seed", [11, 12])
def test_next_token_an_scc_is_mixed_as_counted_and_the_rest_vanishes(seed):
    many, few = np.random.default_rng(seed).integers(1, 6, size=2)
    w = nt.train(*nt.read(["abp a"] * many + ["abp b"] * few + ["bcp b", "cdp c"]))[-1]
    assert abs(w[0] - w[1] - np.log(many / few)) < 0.01 and min(w[1] - w[2], w[2] - w[3]) > 5


def test_next_token_the_gap_within_the_scc_stops_only_if_eta_is_below_8():
    below, above = (nt.train(*nt.read(nt.SAMPLES), 3000, eta)[-1] for eta in (7, 9))
    assert abs(below[0] - below[1] - np.log(3)) < 0.01 < abs(above[0] - above[1] - np.log(3))


# max_margin.py

def test_max_margin_the_direction_is_that_of_steepest_descent():
    p, K, G = (np.random.default_rng(0).standard_normal(shape) for shape in (4, (5, 4), 5))

    def loss(p):
        s = np.exp(K @ p)
        return np.log(1 + np.exp(-s @ G / s.sum()))

    g = slopes(loss, p)
    np.testing.assert_allclose(mm.direction(p, K, G), -g / np.linalg.norm(g), rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_max_margin_the_svm_has_the_largest_margin_of_all_directions(seed):
    K, phi = np.random.default_rng(seed).standard_normal((6, 2)), np.linspace(0, 2 * np.pi, 50_000)
    for t in range(6):
        D, p = K[t] - np.delete(K, t, axis=0), mm.svm(K, t)
        margin = (D @ [np.cos(phi), np.sin(phi)]).min(axis=0).max().clip(0)
        assert abs(margin - (0 if p is None else 1 / np.linalg.norm(p))) < 6e-4


def test_max_margin_a_token_is_locally_optimal_if_it_beats_all_that_its_svm_leaves_1_behind():
    K = np.array([[1, 0], [0, 1], [0, -1], [-0.001, 0]])                # token 3: 1.001 behind
    assert mm.locally_optimal(K, np.array([1, 0, 0, 2]), 0)
    assert not mm.locally_optimal(K, np.array([1, 0, 2, 0]), 0)


@pytest.mark.parametrize("G, expected, near, far", [*zip(
    mm.SCORES, ([1, 1, 0], [1, 1, 0], [1, 0, 0]), ({0, 1}, {0}, {0}), (1, 1, 0))])
def test_max_margin_far_out_a_query_stays_only_at_a_locally_optimal_token(G, expected, near, far):
    assert [mm.locally_optimal(mm.KEYS, G, t) for t in range(3)] == expected
    chosen, off = zip(*(mm.outcome(start, mm.KEYS, G) for start in mm.STARTS))
    assert {*chosen} == near and 0.2 < max(off) < 1.5 and mm.outcome(mm.FAR, mm.KEYS, G)[0] == far


def test_max_margin_demo_asks_for_the_selected_token(monkeypatch):
    monkeypatch.setattr(mm, "outcome", lambda start, K, G: (0, 0.0))
    monkeypatch.setattr(mm, "locally_optimal", lambda K, G, t: t == 0)
    assert mm.demo()[0] == 50


@pytest.mark.parametrize("seed", [11, 12])
def test_max_margin_in_random_samples_the_selected_token_is_locally_optimal_but_not_always_best(seed):
    rng, best = np.random.default_rng(seed), 0
    for start, K, G in (mm.random_sample(rng) for _ in range(25)):
        t, off = mm.outcome(start, K, G)
        best += t == G.argmax()
        assert mm.locally_optimal(K, G, t) and off < 4
    assert 12 < best < 25
