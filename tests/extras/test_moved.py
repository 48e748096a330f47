"""Import paths of earlier versions lead to the rooms of extras."""

from __future__ import annotations

import pytest
from hermes_nb.moved import MOVED

from tests.architecture.test_moved import leads


@pytest.mark.parametrize("old", [old for old in MOVED if ".extras." in MOVED[old]])
def test_an_old_path_is_the_module_that_took_its_place(old):
    leads(old)
