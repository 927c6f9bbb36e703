"""What several edits together cost the next turn. Where `cost.py` prices one edit, this prices a batch, once.

    before     [....][  fragment 1  ][.......][ fragment 2 ][.........]
    after      [....][marker 1][.......][marker 2][.........]
    exact       kept  <---------------- computed ---------->
    reuse       kept  computed   moved   computed   moved        repair: the head of what moves is computed

The text behind the first change is paid for once, whatever was changed behind it. A redaction is never moved: what
stands behind it was computed while the erased text was visible. An estimate in tokens of texts, as in `cost.py`.
"""

from __future__ import annotations

from acmserve.context.edits.cost import ALL_COMPUTED, EditCost, num_tokens_behind
from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens


def turn_cost(before: SessionState, after: SessionState, fidelity: str, tokenizer: Tokenizer) -> EditCost:
    """Tokens that the next turn computes and moves because `before` became `after` through edits."""
    shown_before = {fragment.fragment_id: fragment.shown for fragment in before.fragments}
    changed = [f for f in after.fragments if f.shown != shown_before.get(f.fragment_id)]
    if not changed:
        return EditCost(0)
    first = min(changed, key=lambda fragment: fragment.pieces[0])
    num_after = num_tokens_shown(first, tokenizer) + num_tokens_behind(after, first, tokenizer)
    if fidelity in ALL_COMPUTED or any(f.visibility is Visibility.REDACTED for f in changed):
        return EditCost(num_after)
    num_new = sum(num_tokens_shown(fragment, tokenizer) for fragment in changed)
    return EditCost(num_new).with_text(max(0, num_after - num_new), fidelity, len(changed))


def num_tokens_shown(fragment: Fragment, tokenizer: Tokenizer) -> int:
    """Tokens that the model sees of a fragment: its text, or what stands in its place."""
    if fragment.shown is None:
        return fragment.num_tokens
    return sum(count_tokens(tokenizer, text) for text in fragment.shown)
