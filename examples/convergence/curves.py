"""Curves with bands as SVG: a method's mean over seeds, and the 95 % interval of it or of its differences."""
import math

COLOURS = ["#2a56a8", "#1fa08f", "#b5482f", "#7a5ba8", "#b9922c", "#5b6675"]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 420, 64, 44, 56, 16


def ticks(low, high, count=6):
    step = 10 ** math.floor(math.log10((high - low) / count))
    step = next(step * k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= count)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def series(logs, relative):
    """By method: [(step, mean, half of the interval)]."""
    from report import Interval
    methods, out = [], {}
    for log in logs:
        if log["run"]["method"] not in methods:
            methods.append(log["run"]["method"])
    of_sync = {log["run"]["seed"]: dict(log["validation"]) for log in logs if log["run"]["method"] == "sync"}
    for method in methods:
        if relative and method == "sync":
            continue
        points = {}
        for log in logs:
            if log["run"]["method"] == method:
                for step, loss in log["validation"]:
                    base = of_sync[log["run"]["seed"]][step] if relative else 0
                    points.setdefault(step, []).append(loss - base)
        out[method] = []
        for step, values in sorted(points.items()):
            interval = Interval(values)
            out[method].append((step, interval.mean, interval.half if math.isfinite(interval.half) else 0))
    return out


def write(path, title, logs, relative):
    lines = series(logs, relative)
    # The first tenth of a run would hide the rest.
    last = max(points[-1][0] for points in lines.values())
    shown = {name: [p for p in points if p[0] >= last / 10] for name, points in lines.items()}
    low = min(mean - half for points in shown.values() for _, mean, half in points)
    high = max(mean + half for points in shown.values() for _, mean, half in points)
    if relative:
        low, high = min(low, 0), max(high, 0)
    span = (high - low) or 1
    low, high = low - 0.05 * span, high + 0.05 * span
    first = min(points[0][0] for points in shown.values())

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(last - first, 1)

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'role="img" font-family="system-ui, sans-serif" font-size="12">', f"<title>{title}</title>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" font-size="16" font-weight="600" fill="#17202e">{title}, nats</text>']
    for value in ticks(low, high):
        out.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{"#5b6675" if value == 0 else "#dfe4ea"}"/>'
                   f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#5b6675">{value:.4g}</text>')
    for value in ticks(first, last):
        out.append(f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#5b6675">'
                   f"{value:,.0f}</text>")
    out.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end" fill="#5b6675">updates</text>')
    for n, (name, points) in enumerate(shown.items()):
        colour = COLOURS[(n + (1 if relative else 0)) % len(COLOURS)]
        upper = " ".join(f"{x(s):.1f},{y(m + h):.1f}" for s, m, h in points)
        lower = " ".join(f"{x(s):.1f},{y(m - h):.1f}" for s, m, h in reversed(points))
        out.append(f'<polygon points="{upper} {lower}" fill="{colour}" opacity="0.18"/>')
        out.append(f'<polyline points="{" ".join(f"{x(s):.1f},{y(m):.1f}" for s, m, _ in points)}" fill="none" '
                   f'stroke="{colour}" stroke-width="1.6"/>')
        out.append(f'<rect x="{LEFT + 130 * n}" y="34" width="12" height="10" fill="{colour}"/>'
                   f'<text x="{LEFT + 130 * n + 18}" y="43" fill="#17202e">{name}</text>')
    path.write_text("\n".join(out) + "\n</svg>\n")
