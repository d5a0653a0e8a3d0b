# SPDX-License-Identifier: Apache-2.0 - the parts that reports are made of, as text and as HTML.
import html

STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 75em; color: #222; }
pre { background: #f6f6f6; padding: 1em; overflow: auto; max-height: 40em; font-size: 12px; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { border: 1px solid #ddd; padding: 3px 8px; text-align: left; vertical-align: top; }
td.n { text-align: right; white-space: nowrap; }
.picture { overflow: auto; border: 1px solid #ddd; max-height: 50em; }
svg text { font: 11px system-ui, sans-serif; }
"""


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return "not told"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def details(title: str, text: str) -> str:
    return (
        f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row) + "</tr>"

    return f"<table>{cells(head, 'th')}{''.join(cells(r, 'td') for r in rows)}</table>"


def begin(title: str) -> str:
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>"
    )


END = "</body></html>\n"
