"""Beside jupyter-server-documents, whose server runs the cells and saves by itself.

It runs them as nbclient does, for nobody who could answer, so a turn looks for no page by itself.
"""

from tests.systems.test_jupyter_collaboration import (
    test_each_save_answers_and_the_file_holds_what_is_shown,
)

SYSTEM = "jupyter-server-documents"
__all__ = ["test_each_save_answers_and_the_file_holds_what_is_shown"]
