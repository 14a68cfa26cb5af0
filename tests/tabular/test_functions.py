import torch

from whvi.tabular.functions import towards_mean


def test_functions_move_towards_the_mean_of_members_that_share_rows():
    f = torch.randn(4, 5, 6, 2, dtype=torch.float64)
    assert towards_mean(f, 1.0) is f
    for sharing, groups in ((0, 1), (4, 1), (2, 2), (1, 4)):
        moved = towards_mean(f, 0.3, sharing)
        for part, before in zip(moved.chunk(groups), f.chunk(groups), strict=True):
            center = before.mean((0, 1))
            torch.testing.assert_close(part.mean((0, 1)), center)
            torch.testing.assert_close(part - center, 0.3 * (before - center))


def test_rows_that_members_do_not_see_alike_keep_their_spread():
    f = torch.randn(4, 5, 3, 2, dtype=torch.float64)
    seen = torch.randn(1, 3, 6).repeat(4, 1, 1)
    seen[2, 1, 0] += 1  # the third member sees another second row
    found = towards_mean(f, 0.3, 0, seen)
    assert torch.equal(found[:, :, 1], f[:, :, 1])
    assert torch.equal(found[:, :, [0, 2]], towards_mean(f, 0.3)[:, :, [0, 2]])
    pairs = towards_mean(f, 0.3, 2, seen)
    assert torch.equal(pairs[:2], towards_mean(f, 0.3, 2)[:2])
    assert torch.equal(pairs[2:, :, 1], f[2:, :, 1])
