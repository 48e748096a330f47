"""In JupyterLab 4.5 and Notebook 7.5, the line before the one that `make test` runs in."""

from tests.e2e.test_edits_in_place import (
    test_a_suggestion_stands_over_the_old_text_until_it_is_kept,
    test_parts_are_decided_by_themselves_and_typing_moves_them,
)
from tests.e2e.test_page_buttons import (
    test_88_a_pages_own_button_link_or_script_decides_nothing,
)
from tests.e2e.test_prompt_cells import (
    test_a_prompt_is_shown_as_markdown_and_stays_python,
    test_tab_completes_a_prompt_while_the_kernel_is_idle_and_busy,
)

SYSTEM = "jupyterlab-4.5"
__all__ = [
    "test_88_a_pages_own_button_link_or_script_decides_nothing",
    "test_a_prompt_is_shown_as_markdown_and_stays_python",
    "test_a_suggestion_stands_over_the_old_text_until_it_is_kept",
    "test_parts_are_decided_by_themselves_and_typing_moves_them",
    "test_tab_completes_a_prompt_while_the_kernel_is_idle_and_busy",
]
