"""Groups of images: from a file or by a pattern, and what is said where an image has none."""

import pytest

from densecal.errors import InputError
from densecal.io.groups import Groups


def test_the_first_capture_group_or_the_whole_match_is_the_group():
    names = ["p01_slice3", "p01_slice4", "p02_slice1"]
    assert Groups(r"p(\d+)_(.*)").of(names) == ["01", "01", "02"]
    assert Groups(r"p\d+").of(names) == ["p01", "p01", "p02"]


@pytest.mark.parametrize("pattern", [r"patient\d", r"(x)?p0", r"()p"])
def test_an_image_without_a_group_is_named(pattern):
    with pytest.raises(
        InputError, match=r"^--groups: no group for 'p01' \(2 images have none\); expected names that m"
    ):
        Groups(pattern).of(["p01", "p02"])


def test_a_bad_pattern_is_an_error_with_the_name_of_the_setting():
    with pytest.raises(InputError, match=r"^data\.groups: 'p\(' \(.*\); expected a file or a regular expression"):
        Groups("p(", "data.groups")


@pytest.mark.parametrize("separator", [",", "\t", " , "])
@pytest.mark.parametrize("head", ["", "name{}group\n", "# by the clinic\n", "\ufeff"])
def test_a_file_lists_names_with_or_without_suffixes(tmp_path, separator, head):
    path = tmp_path / "groups.csv"
    lines = ["a.1.PNG{}anna", "b{}ben, junior", "unused{}carl", "c.d{}anna", "a.1{}anna"]
    path.write_text(head.format(separator) + "".join(line.format(separator) + "\n" for line in lines))
    assert Groups(str(path)).of(["c.d", "b", "a.1"]) == ["anna", "ben, junior", "anna"]


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    path = tmp_path / "groups.tsv"
    with pytest.raises(InputError, match=r"groups\.tsv: no such file; expected lines NAME,GROUP"):
        Groups(str(path))
    path.write_text("a,x\nb,y\n")
    with pytest.raises(InputError, match=r"groups\.tsv: no group for 'c'; expected a line NAME,GROUP for every image"):
        Groups(str(path)).of(["a", "c"])
    for text, message in {
        "a,x\nb\n": r"the line 'b'; expected lines NAME,GROUP",
        "a,x\nb,\n": r"the line 'b,'",
        ",x\n": r"the line ',x'",
        "a,x\na.png,y\n": r"'a' in the groups 'x' and 'y'; expected one group per name",
        "name,group\n": "no names",
        "# nothing\n": "no names",
    }.items():
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            Groups(str(path))
