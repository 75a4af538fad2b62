"""Tests of theory_plots.py:  python -m pytest beyond/test_theory_plots.py

Each figure is given made-up runs.  They are as theory says, but for the third seed: there, what is
measured is too small by a factor, another one for neighbouring settings.  So a wrong ratio, mean or
axis is seen.  What theory_plots.py itself computes is held against known numbers.
"""

import theory_plots     # first: it finds the other files

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fcn
import plots
import scaled_logits
import sts
import theory
import train
import width
from plots import FIXED, NET, STOCHASTIC, THEORY
from test_pictures import drawn
from theory_plots import BY_Q, LONG_T, ONEHOT, SIGNS, SIZES, error_path, exact, full_exact


def weights(c, a, alpha):
    """a W* and alpha V*."""
    W, V = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
    return {"W": a * W, "V": alpha * V}


def made_up_run(key, c, factor):
    """What theory_plots.py reads of a run."""
    (name, kind, *_), t, unit = key, np.arange(c.steps), c.d / (2 * c.q)
    run = {"config": c, "factor": factor} | weights(c, 3 * factor, 1.3)
    if name == "dynamics":
        run["loss"] = np.interp(t * factor, t, exact(run)["loss"])
    if name == "noise":                             # the loss falls in a line
        half = theory_plots.predicted_plateau(c) if kind == "plateau" else (
            1 + c.lr * c.T / (2 * c.batch * c.draws)) * theory_plots.half_step(exact(run))
        run |= {"half": factor * half, "loss": unit * (1 - t / (2 * factor * half))}
    if (name, kind) == ("length", "floor"):
        run["loss"] = np.full(c.steps, factor * theory_plots.floor(c))
    elif name == "length":                          # one evaluation on the plateau, one at the end
        lengths = np.array([c.T, *c.T_test])
        last = (theory_plots.predicted_errors(run, lengths) if kind == "signs" else
                theory.length_loss(0.03, c.T, lengths, c.d, c.q))
        run |= {"loss": np.r_[np.full(c.steps - 30, 9), np.full(30, 0.03)],
                "error": np.array([[0.8] * len(last), factor * last]), "eval_step": [30, c.steps],
                "tests": np.array([(T, c.q) for T in lengths])}
    if name == "tests" and len(key) == 2:
        tests = [(T, 3) for T in (50, 62, 75, 87, 100)] + [(50, q) for q in (2, 4, 5, 8)]
        share = factor * np.transpose([error_path(run, T, q)[::100] for T, q in tests])
        run |= {"tests": np.array(tests), "eval_step": np.arange(0, 4001, 100), "share": share,
                "error": share * 5 / (2 * np.array(tests)[:, 1])}
    elif name == "tests" and c.pe == "fixed":       # e_j . W e_j is 1 at old positions
        run |= {"E": np.eye(c.d_e)[[0] * 50 + [1] * 50], "W": np.zeros((5 + c.d_e, 5 + c.d_e))}
        run["W"][5, 5] = 1
        run["W"][6, 6] = factor * (c.T / (c.T + c.d_e - 1) if kind == "share" else 0.5)
    if name == "full_model":
        run["loss"] = factor * full_exact(c)[0][:c.steps]
    if name == "data":                              # 8 sequences, or 160, for 10 % of d/(2q)
        share = {"stochastic orthonormal": 0.8 / c.batch, "one-hot": 16 / c.batch}.get(kind, 1.5)
        run |= {"error": unit * np.array([[9.0], [factor * share]]), "loss": unit * np.r_[
            np.full(c.steps - 100, 9), np.full(100, 1e-5 * factor * c.batch)]}
    if name == "separation":
        share = 1.2 * factor * (1 - c.hidden[0] / (6 * c.T))
        run |= {"tests": np.array([[c.T, c.q]]), "error": np.array([[9.0], [share * unit]])}
    if name == "width":
        run |= {"tests": np.array([[c.T, c.q]]), "error": np.array(
            [[9.0], [0.1 * unit * made_up_width(c.q, c.T, factor) / c.d_e]])}
    return run


def made_up_width(q, T, factor=1):
    """The d_e that runs need: a little above the least one that is trained."""
    return 1.1 * SIZES[q][T][0] * math.sqrt(factor)


def predicted_widths(q, K, trained):
    """Predicted d_e, which differ by q and K, and grow with ln T or its square."""
    return 20 * q + 9 * (K != 16) + np.log(LONG_T) ** (2 if K == 1 or trained else 1)


@pytest.fixture
def made_up(monkeypatch):
    """A function from the name of a figure to its runs, what is measured of them, and its axes."""
    monkeypatch.setattr(theory_plots, "sign_slopes", lambda T, d_e, q: (
        lambda a, alpha, d: theory.onehot_slopes(a, alpha, T, d, q)))
    monkeypatch.setattr(theory_plots, "predicted_widths", predicted_widths)
    monkeypatch.setattr(theory_plots, "scaled_ratios", lambda run, T: (run["factor"] * T, T / 10))

    def make(name):
        own, draw, measure, headline = theory_plots.PARTS[name]
        size, runs = {"data": 2, "width": 3, "separation": 2}.get(name, 9), {}  # one factor each
        groups = list(dict.fromkeys(key[:size] for key in own))
        for key, arm in own.items():
            c, bad = train.configuration(**arm), 0.9 - groups.index(key[:size]) % 7 / 100
            runs[key] = [made_up_run(key, c, factor) for factor in (1, 1, bad)]

        def with_headline():
            figure = draw(runs)
            figure.suptitle(headline)
            return figure

        return runs, measure(runs), list(drawn(with_headline).values())

    yield make
    plt.close("all")


def factors(runs, *name):
    """The factors of the runs whose key begins with this name (settings, seeds)."""
    return np.array([[run["factor"] for run in found] for key, found in runs.items()
                     if list(key[:len(name)]) == list(name)])


def assert_measured(measured, expected, rtol=1e-3):
    """Each row has these values, in this shape."""
    assert measured.keys() == expected.keys()
    for text, values in measured.items():
        assert np.shape(values) == np.shape(expected[text]), text
        np.testing.assert_allclose(values, expected[text], rtol, err_msg=text)


def assert_shown(axis, x, y, color, **style):
    """An axis has a curve, or points, in this color and style, and with this label."""
    x, y = np.ravel(x), np.ravel(y)
    lines = [line for line in axis.lines if line.get_color() == color
             and len(line.get_xdata()) == len(x) and np.allclose(line.get_xdata(), x, 1e-3)
             and np.allclose(line.get_ydata(), y, 1e-3)]
    assert any(all(plt.getp(line, name) == value for name, value in style.items())
               for line in lines), y


def test_dynamics(made_up):
    runs, measured, (left, right, a, alpha) = made_up("dynamics")
    late, ends, steps = [], [], np.array([150, 400, 1000, 4000])
    laws = (("one-hot", ONEHOT, "--"), ("orthonormal", STOCHASTIC, "-."),
            ("random signs", SIGNS, ":"))
    legend = right.get_legend()
    samples = [(line.get_color(), line.get_linestyle()) for line in legend.findobj(plt.Line2D)]
    for text, measured_line, exact_line, (law, color, dash) in zip(
            legend.get_texts(), samples[::2], samples[1::2], laws, strict=True):
        assert (text.get_text(), measured_line, exact_line) == (law, (color, "-"), (THEORY, dash))
    for law, color, dash in laws:
        f, longest = factors(runs, "dynamics", law), runs["dynamics", law, 4000]
        path, L = exact(longest[0]), np.array([run["loss"] for run in longest])
        late.append(f[-1])
        ends.append(L[:, -400:].mean(axis=1) / path["loss"][-400:].mean())
        t, means = np.arange(20, 4000, 40) - 0.5, L.reshape(3, 100, 40).mean(axis=2)
        assert_shown(left, t, means.mean(axis=0), color)
        assert_shown(left, range(4000), path["loss"], THEORY)
        assert_shown(right, t, (1 / means).mean(axis=0), color)
        assert_shown(right, range(4000), 1 / path["loss"], THEORY, linestyle=dash)
        assert_shown(a, np.repeat(steps, 3), 3 * f, color)
        assert_shown(a, range(4001), path["a"], color)
        assert_shown(alpha, np.repeat(steps, 3), [1.3] * 12, color)
        assert_shown(alpha, range(4001), path["alpha"], color)
    assert_measured(measured, {
        "step at which L has halved / exact": 1 / np.array(late), "L at the end / exact": ends,
        "growth of 1/L over 4 lr/|W*|^2, not random signs": [
            [theory_plots.growth(run) * norm2 / 4 for run in runs["dynamics", law, 4000]]
            for law, norm2 in (("one-hot", 49), ("orthonormal", 100))]}, 0.005)


def test_noise(made_up):
    runs, measured, (axis,) = made_up("noise")
    delays, f = [runs[key] for key in runs if key[1] == "delay"], factors(runs, "noise", "delay")
    configs = [found[0]["config"] for found in delays]
    laws = np.array([1 + c.lr * c.T / (2 * c.batch * c.draws) for c in configs])
    size = np.array([c.lr * (c.d + c.q) / c.batch for c in configs])
    names = [key[2] for key in runs if key[1] == "delay"]
    for i, (law, seeds, small, c) in enumerate(zip(laws, f, size <= 1 / 8, configs)):
        label = {} if names[i] in names[:i] else {"label": names[i]}        # the first of a curve
        color = {"onehot": ONEHOT, "orthonormal": STOCHASTIC}.get(c.law, SIGNS)
        assert_shown(axis, [law] * 3, law * seeds, color)
        assert_shown(axis, law, law * seeds.mean(), color,
                     fillstyle="full" if small else "none", **label)
    assert_shown(axis, (1, 2.7), (1, 2.7), THEORY, label="measured = predicted")
    plateaus = delays + [runs[key] for key in runs if key[1] == "plateau"]
    assert_measured(measured, {
        "lr (d + q)/n at most 1/8: delay of the plateau / formula": f[size <= 1 / 8],
        "lr (d + q)/n 1/4 to 3/8: delay of the plateau / formula":
            f[(size > 1 / 8) & (size < 1 / 2)],
        "lr (d + q)/n 1/2: delay of the plateau / formula": f[size == 1 / 2],
        "n = 32, K = 1, 2, 4: delay of the plateau / formula": f[12:15],
        "theory.plateau: steps to half of d/(2q) / formula": [
            [run["half"] / theory_plots.predicted_plateau(run["config"]) for run in found]
            for found in plateaus if theory_plots.plateau_holds(found[0]["config"])],
        "default run, fresh: delay of the plateau": laws[15] * f[15],
        "default run, one full batch: delay of the plateau":
            laws[15] * factors(runs, "noise", "full batch")[0]})


def test_length(made_up):
    runs, measured, (axis,) = made_up("length")
    f, L = factors(runs, "length", "orthonormal")[0], np.geomspace(0.005, 0.25, 50)
    for T in 40, 80, 160:
        assert_shown(axis, 1 / L, theory.length_loss(L, 20, T, 5, 3), THEORY)
        assert_shown(axis, [1 / 0.03] * 3, f * theory.length_loss(0.03, 20, T, 5, 3), STOCHASTIC,
                     label=f"$T_{{test}}$ = {T}")
    assert_measured(measured, {
        "random signs: training loss / floor": factors(runs, "length", "floor"),
        "random signs, T to 40 T: error / predicted": [factors(runs, "length", "signs")[0]] * 5,
        "orthonormal, 2 T to 8 T: error / formula": np.repeat(f, 3),
        **{f"scaled logits at {k} T: error / predicted":
           factors(runs, "gd", "stochastic")[0] * k * 200 for k in (2, 5, 20, 80, 500)},
        "the same: standard error of a ratio": [[k * 20] * 3 for k in (2, 5, 20, 80, 500)]})


def test_a_ratio_of_scaled_logits_has_the_errors_of_both_sides(monkeypatch):
    c, asked = train.configuration(T=20, q=2, d=2, d_e=30), []
    run = {"config": c} | weights(c, 2.5, 1.3)
    f = np.array([[[2.0, 0], [0, 4]], [[0, 0], [0, 0]]])        # the mean has losses of .5 and 2
    monkeypatch.setattr(scaled_logits, "end_outputs",
                        lambda run, T, q, scaled, n: (f, np.zeros((2, 2))))
    monkeypatch.setattr(width, "predict_loss",
                        lambda rng, *given: asked.extend(given) or (5.0, 0.5))
    ratio, error = theory_plots.scaled_ratios(run, 60, n=9)
    assert ratio == pytest.approx(1.25 / 5)
    assert error == pytest.approx(ratio * math.hypot(0.75 / 1.25 / 3, 0.5 / 5))
    assert asked[:6] == pytest.approx([2.5 + math.log(58 / 18), 1.3, 60, 2, 2, 30])


def test_tests(made_up):
    runs, measured, axes = made_up("tests")
    for pe, color in ("stochastic", STOCHASTIC), ("fixed", FIXED):
        found = runs["tests", pe]
        for k, (axis, (T, q)) in enumerate(zip(axes, found[0]["tests"][1:]), 1):
            path, points = error_path(found[0], T, q), [run["share"][:, k] for run in found]
            assert axis.get_title() == (f"$T_{{test}}$ = {T}" if k < 5 else f"$q_{{test}}$ = {q}")
            assert_shown(axis, [range(0, 4001, 100)] * 3, points, color, label=pe)
            assert_shown(axis, range(4001), path, color)
            if pe == "fixed" and k < 5:
                assert_shown(axis, path.argmin(), path.min(), THEORY)
    stochastic, fixed = (factors(runs, "tests", pe)[0] for pe in ("stochastic", "fixed"))
    assert_measured(measured, {
        "stochastic, 4 lengths, 4 sizes: last error / exact": [stochastic] * 8,
        "random signs, stochastic: e.We, new over trained": [1, 1, 1],
        "fixed, 4 lengths, 4 sizes: last error / exact": [fixed] * 8,
        "random signs, fixed: e.We, new over trained":
            0.5 * factors(runs, "tests", "signs", "fixed")[0],
        "fixed, 4 lengths: least error / exact": [fixed] * 4,
        "fixed signs, d_e 25 to 400, step 60: e.We, new over trained / formula":
            factors(runs, "tests", "share")})


def test_full_model(made_up):
    runs, measured, (left, right) = made_up("full_model")
    t = np.unique(np.geomspace(10, 100_000, 200).astype(int))
    edges = np.unique(np.geomspace(10, 4000, 13).astype(int))
    expected = {}
    for (_, name, q), found in runs.items():
        L, law = full_exact(found[0]["config"])
        axis = left if name == "orthonormal, sum" else right
        color = ONEHOT if name == "one-hot, sum" else BY_Q[q][0]
        means = [L[i:j].mean() for i, j in zip(edges, edges[1:])]
        assert_shown(axis, t, L[t], THEORY)
        assert_shown(axis, t[t >= 1000], law[t[t >= 1000]], THEORY)
        assert_shown(axis, [np.sqrt(edges[1:] * edges[:-1])] * 3,
                     np.outer([run["factor"] for run in found], means), color,
                     label=f"q = {q}" + ", one-hot" * (name == "one-hot, sum"))
        expected.setdefault(f"{name}: recursion / formula at t = 10^5", []).append(L[-1] / law[-1])
        expected[f"{name}: loss at the end / recursion"] = factors(runs, "full_model", name)
    assert_measured(measured, expected)


def test_data(made_up):
    runs, measured, (left, right) = made_up("data")
    f = {name: factors(runs, "data", name) for name in theory_plots.MODELS}
    N, nets = np.array([4, 8, 16, 32, 64, 128, 256]), f["net, 120 units"]
    for name, color, sizes, shares in [
            ("stochastic orthonormal", STOCHASTIC, N, 0.8 / N), ("one-hot", ONEHOT, N, 16 / N),
            ("fixed orthonormal", FIXED, N, [1.5] * 7),
            ("net, 120 units", NET, np.array([16, 64, 256, 1024, 4096]), [1.5] * 5)]:
        losses = np.maximum(1e-5 * sizes[:, None] * f[name], 1e-4)
        assert_shown(left, sizes, shares * f[name].mean(axis=1), color)
        assert_shown(right, sizes, losses.mean(axis=1), color, label=name)
    assert_shown(left, (0, 1), (0.1, 0.1), THEORY)
    assert_measured(measured, {
        "stochastic orthonormal: N needed for a test error of 10%":
            8 * f["stochastic orthonormal"][0],
        "one-hot: N needed for a test error of 10%": 160 * f["one-hot"][0],
        "one-hot, fixed orthonormal, N = 16, 32: test error / (d/(2q))": np.concatenate(
            [np.outer([1, 0.5], f["one-hot"][0]), 1.5 * f["fixed orthonormal"][2:4]]),
        "net, N up to 4096: test error / (d/(2q))": 1.5 * nets})


def test_width(made_up):
    runs, measured, (left, *right) = made_up("width")
    T, long, expected = np.array(LONG_T), np.geomspace(160, 1e9, 50), {}
    for q, sizes in SIZES.items():
        predicted, needed = 20 * q + np.log(T) ** 2, np.array([
            [made_up_width(q, n, run["factor"]) for run in runs["width", q, n, d_e]]
            for n, (d_e, *_) in sizes.items()])
        assert_shown(left, T[:7], predicted[:7], THEORY)
        assert_shown(left, np.repeat(list(sizes), 3), needed, BY_Q[q][0], label=f"q = {q}")
        expected[f"q = {q}: trained d_e / predicted"] = [
            row / predicted[LONG_T.index(n)] for n, row in zip(sizes, needed)]
    for axis, power in zip(right, (2, 1)):
        assert axis.get_title().endswith(theory_plots.POWERS[power])
        assert (axis.get_xscale(), axis.get_yscale()) == ("log", "linear")
        for least, text in (60, "16 draws"), (69, "one draw" if power == 2 else "all draws"):
            text += ", as trained" * (power == 2 and least == 60)
            assert_shown(axis, T, least + np.log(T) ** power, STOCHASTIC, label=text)
            assert_shown(axis, long, least + np.log(long) ** power, THEORY)
    for *_, text, power in theory_plots.GROWTH:
        expected[f"q = 3, {text}: fit of {theory_plots.POWERS[power]} / predicted"] = [1] * 6
    assert_measured(measured, expected | {"q = 3, T = 10: d_e, trained": needed[0],
                                          "q = 3, T = 320: d_e, trained": needed[-1]})


def test_separation(made_up):
    """Made-up nets with m units have the share 1.2 factor (1 - m/(6 T))."""
    runs, measured, (axis,) = made_up("separation")
    T, factor = np.array([10, 20, 40]), factors(runs, "separation")[::2]        # (T, seeds)
    needed = 6 * T[:, None] * (1 - 0.1 / (1.2 * factor))
    attention = np.array([5 + made_up_width(3, n, run["factor"]) for n in SIZES[3]
                          for run in runs["width", 3, n, SIZES[3][n][0]]]).reshape(-1, 3)
    bound = 5 * np.array(list(SIZES[3])) * [1 - 0.1 * (n - 1) / (n - 3) for n in SIZES[3]]
    for n, m in zip(SIZES[3], bound):
        assert fcn.width_lower_bound(m, n, 5, 3) == pytest.approx(0.1 * 5 / 6)
    assert_shown(axis, np.repeat(T, 3), needed, NET)
    assert_shown(axis, list(SIZES[3]), bound, NET, linestyle="--")
    assert_shown(axis, np.repeat(list(SIZES[3]), 3), attention, STOCHASTIC)
    assert_shown(axis, list(SIZES[3]), attention.mean(axis=1), STOCHASTIC)
    colors = {text.get_text(): text.get_color() for text in axis.texts}
    near, far = needed[-1].mean() / attention[2].mean(), bound[-1] / attention[-1].mean()
    assert [*colors.values()] == [NET, STOCHASTIC, THEORY, THEORY]
    assert [*colors][2:] == [f"{near:.1f} times", f"{far:.1f} times"]
    assert "net" in [*colors][0] and "attention" in [*colors][1]
    assert_measured(measured, {
        **{f"T = {n}: width that trained nets need / bound": row / m
           for n, row, m in zip(T, needed, bound)},
        "T = 40: width that nets need / attention": needed[-1] / attention[2],
        "T = 320: bound for nets / width that attention needs": bound[-1] / attention[-1]})


# Known numbers


def test_measures_give_numbers_that_are_known():
    above_half = {"config": train.configuration(), "loss": np.full(1000, 0.42)}
    assert math.isnan(theory_plots.half_step(above_half))
    assert theory_plots.last_loss({"loss": np.arange(1000.0)}) == 949.5
    rising = {"loss": 1 / np.r_[np.full(300, 7.0), 7 + 0.3 * np.arange(700)]}
    assert theory_plots.growth(rising) == pytest.approx(0.3, rel=0.001)
    for errors, size in [((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.05, 0.05), math.nan),
                         ((0.05, 0.2, 0.05), math.sqrt(80 * 120)), ((0.01, 0.01, 0.2), math.nan)]:
        assert theory_plots.crossing([50, 80, 120], errors, 0.1) == pytest.approx(size, nan_ok=True)
    values = 7 + 2 * np.log(LONG_T) ** 2
    misfit = theory_plots.fitted_widths(values, 1) / values[4:] - 1     # least relative squares
    assert abs(misfit).max() > 0.05 and abs((misfit / values[4:]).sum()) < 1e-9


def test_exact_runs_have_the_settings_of_a_run():
    given = {"T": 20, "d": 4, "q": 2, "lr": 0.5, "steps": 70, "d_e": 64, "law": "orthonormal"}
    for pe, norm2 in ("stochastic", 64), ("fixed", 19):
        run = {"config": train.configuration(pe=pe, **given)}
        L, a, alpha = theory.descend(theory.onehot_slopes, 0.5, 70, (norm2, 4), 20, 4, 2)
        shares = 6 / 4 * (theory.test_loss(a, alpha, 30, 4, 3) if pe == "stochastic" else
                          theory.fixed_test_loss(a, alpha, 20, 30, 4, 3))
        np.testing.assert_allclose(exact(run)["loss"], L[:-1])
        np.testing.assert_allclose([exact(run)["a"], exact(run)["alpha"]], [a, alpha])
        np.testing.assert_allclose(error_path(run, 30, 3), shares)


def test_random_signs_descend_as_the_mean_over_single_draws():
    path = exact({"config": train.configuration(T=20, lr=1.0, steps=300, d_e=64)})
    E = sts.positional_encoding("rademacher", 20, 64, np.random.default_rng(0), 2000)
    P = sts.softmax(path["a"][-2] * (E @ E[:, :3].sum(axis=1)[:, :, None])[:, :, 0])
    r = path["alpha"][-2] * P - np.isin(np.arange(20), range(3)) / 3
    assert path["loss"][-1] == pytest.approx(2.5 * (r * r).sum(axis=1).mean(), rel=0.03)


def test_predictions_are_for_the_settings_of_a_run():
    for q, pe, query, growth in (2, "stochastic", "mean", 0.05), (3, "onehot", "sum", 0.0783):
        c = train.configuration(T=20, q=q, lr=1.0, d_e=20, pe=pe, law="orthonormal", query=query)
        np.testing.assert_allclose([values[-1] for values in full_exact(c)], 1e-5 / growth, 0.06)
    c = train.configuration(T=50, d_e=100, lr=1.0, draws=2, fresh=True)
    steps = 50 * (10 * (1 + 50 / 1024) * (1 + 6 / 50 * math.log(50 / 3)) + math.log(50 / 3) / 2)
    assert theory_plots.predicted_plateau(c) == pytest.approx(steps)
    for given, holds in [({}, True), ({"fresh": False}, False), ({"lr": 4.1}, False),
                         ({"d_e": 60}, True), ({"d_e": 59}, False),
                         ({"d_e": 50, "law": "orthonormal"}, True)]:
        given = {"T": 50, "d_e": 100, "lr": 1.0, "fresh": True} | given
        assert theory_plots.plateau_holds(train.configuration(**given)) == holds
    one, four = (theory_plots.floor(train.configuration(T=20, d_e=16, draws=K)) for K in (1, 4))
    assert four < 0.5 * one
    c = train.configuration(T=100, d_e=170)
    one, many = (width.predict_loss(np.random.default_rng(1), 6, 1.3, 200, 5, 3, 170, K)[0]
                 for K in (1, c.eval_draws))
    found = theory_plots.predicted_errors({"config": c, **weights(c, 6, 1.3)}, [200])[0]
    assert abs(found / many - 1) < 0.05 < one / many - 1


def test_rows_are_over_settings_or_seeds_and_kept_if_all_are_there(monkeypatch, tmp_path):
    rows = {"settings": [[1, 2, 6], [5, 6, 7]], "seeds": [1, 2, 6]}
    monkeypatch.setattr(theory_plots, "PARTS", {name: ({(name, 1): {}}, None, lambda _: rows, "")
                                                for name in ("one", "two")})
    monkeypatch.setattr(theory_plots, "HERE", tmp_path)
    (tmp_path / "figures").mkdir()
    for runs in None, {("one", 1): []}, {("one", 1): [], ("two", 1): []}:
        assert not list(tmp_path.glob("figures/*"))
        monkeypatch.setattr(plots, "main", lambda *_: runs)
        theory_plots.main()
    lines = (tmp_path / "figures" / "measured.txt").read_text().splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["one", "settings", "4.5", "(3", "to", "6)"], ["one", "seeds", "3", "(1", "to", "6)"]]
    assert len(lines) == 5


def test_small_arms_are_those_of_the_figures_with_fewer_steps():
    full, small = theory_plots.arms(False), theory_plots.arms(True)
    assert full.keys() == small.keys()
    assert {key[0] for key in full} == {*theory_plots.FIGURES, "gd"}
    for key in full:
        a, b = (vars(train.configuration(**arms[key])) for arms in (full, small))
        assert {name for name in a if a[name] != b[name]} <= {"steps", "batch", "eval_sequences"}
        assert 100 <= b["steps"] <= max(100, a["steps"] // 20)
    for fresh, key in (True, ("delay", "random signs", 4.0)), (False, ("full batch",)):
        run, default = (vars(train.configuration(**arm)) for arm in (
            full["noise", *key], {"fresh": fresh}))
        assert {name for name in run if run[name] != default[name]} == {
            "steps", "evaluations", "eval_sequences", "T_test", "q_test"}
