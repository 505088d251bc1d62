"""The networks of the demo models, and the detector's loss: plain convolutions, batch norm and ReLU.

After export they are Conv, Relu, Add, Concat, Resize (nearest), Sigmoid and a little arithmetic, which every runtime
and every quantiser knows.
"""

from __future__ import annotations

import demo_data as data
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STRIDES = (8, 16, 32)
# Three anchors a stride (w, h in pixels): a digit is about two thirds as wide as high, 16 to 96 pixels high.
HEIGHTS = torch.logspace(4.15, 6.45, 9, base=2).view(3, 3)
ANCHORS = torch.stack([0.64 * HEIGHTS, HEIGHTS], dim=-1)
REACH = 2.5  # an anchor learns boxes up to so many times larger or smaller; the head can express 4


class ConvBlock(nn.Sequential):
    """Convolution, batch norm (folded into it on export), ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs, momentum=0.03), nn.ReLU(inplace=True))


class CSP(nn.Module):
    """A cross-stage partial block (Wang et al., 2019): half of the channels go through a residual pair, half around."""

    def __init__(self, inputs: int, outputs: int, residual: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.through, self.around = ConvBlock(inputs, half, 1), ConvBlock(inputs, half, 1)
        self.pair, self.residual = nn.Sequential(ConvBlock(half, half, 1), ConvBlock(half, half)), residual
        self.merge = ConvBlock(outputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.through(x)
        y = y + self.pair(y) if self.residual else self.pair(y)
        return self.merge(torch.cat([y, self.around(x)], 1))


class DetectionDecoder(nn.Module):
    """A small single-shot detector with YOLOv5's head: three strides, three anchors each, a top-down neck.

    `forward` gives raw values [batch, anchors, 5 + classes]; `decode` turns them into YOLOv5's output. Anchors are
    ordered as there: by stride, then anchor, then row, then column.
    """

    def __init__(self, widths: tuple[int, ...] = (12, 24, 40, 64, 96), size: int = data.SIZE) -> None:
        super().__init__()
        w1, w2, w3, w4, w5 = widths
        self.stem = nn.Sequential(ConvBlock(3, w1, 3, 2), ConvBlock(w1, w2, 3, 2), CSP(w2, w2))
        self.down3 = nn.Sequential(ConvBlock(w2, w3, 3, 2), CSP(w3, w3))
        self.down4 = nn.Sequential(ConvBlock(w3, w4, 3, 2), CSP(w4, w4))
        self.down5 = nn.Sequential(ConvBlock(w4, w5, 3, 2), CSP(w5, w5))
        self.side5, self.side4 = ConvBlock(w5, w4, 1), ConvBlock(w4, w3, 1)
        self.up4, self.up3 = CSP(2 * w4, w4, residual=False), CSP(2 * w3, w3, residual=False)
        self.width, self.cells = 5 + len(data.NAMES), [size // stride for stride in STRIDES]
        self.heads = nn.ModuleList(nn.Conv2d(w, 3 * self.width, 1) for w in (w3, w4, w5))
        for head in self.heads:  # likely values: an object once in a few hundred anchors, a class in ten
            bias = head.bias.data.view(3, self.width)
            bias[:, 4], bias[:, 5:] = -6.0, -2.2
        grids, strides, anchors = [], [], []
        for stride, level, cells in zip(STRIDES, ANCHORS, self.cells, strict=True):
            y, x = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
            grids.append(torch.stack([x, y], -1).view(1, -1, 2).expand(3, -1, 2).reshape(-1, 2).float())
            strides.append(torch.full((3 * cells * cells, 1), float(stride)))
            anchors.append(level[:, None].expand(-1, cells * cells, 2).reshape(-1, 2))
        self.grid, self.stride, self.anchor = (
            nn.Buffer(torch.cat(x), persistent=False) for x in (grids, strides, anchors)
        )

    def forward(self, x: Tensor) -> Tensor:
        x3 = self.down3(self.stem(x))
        x4 = self.down4(x3)
        x5 = self.down5(x4)
        x4 = self.up4(torch.cat([F.interpolate(self.side5(x5), scale_factor=2.0), x4], 1))
        x3 = self.up3(torch.cat([F.interpolate(self.side4(x4), scale_factor=2.0), x3], 1))
        rows = []
        # Sizes are constants, not asked of the tensors, so that the exported graph has no arithmetic on shapes.
        for head, level, cells in zip(self.heads, (x3, x4, x5), self.cells, strict=True):
            y = head(level).reshape(-1, 3, self.width, cells * cells)
            rows.append(y.transpose(2, 3).reshape(-1, 3 * cells * cells, self.width))
        return torch.cat(rows, 1)

    def decode(self, raw: Tensor) -> Tensor:
        """YOLOv5's formulas, s being the sigmoid of raw: xy = (2 s - 0.5 + cell) stride, wh = (2 s)^2 anchor."""
        s = raw.sigmoid()
        xy = (2 * s[..., 0:2] + (self.grid - 0.5)) * self.stride
        root = 2 * s[..., 2:4]
        return torch.cat([xy, root * root * self.anchor, s[..., 4:]], -1)

    def loss(self, raw: Tensor, truth: Tensor) -> Tensor:
        """The loss of a batch; `truth` is [n, 6]: image, class, cx, cy, w, h.

        A truth is learnt by each anchor of a like size whose cell is near its centre (YOLOv5's idea, told without its
        neighbour table). Boxes: 1 - CIoU; objectness: the IoU reached; classes: binary cross entropy. All are sums over
        the number of positives, weighted 5 : 1 : 1 as in YOLOX.
        """
        ratio = truth[:, None, 4:6] / self.anchor
        offset = truth[:, None, 2:4] / self.stride - self.grid
        fits = (torch.maximum(ratio, 1 / ratio) < REACH).all(-1) & ((offset - 0.5).abs() < 0.9).all(-1)
        row, anchor = fits.nonzero(as_tuple=True)
        image = truth[row, 0].long()
        positive = raw[image, anchor]
        s = positive[:, :4].sigmoid()
        xy = (2 * s[:, :2] - 0.5 + self.grid[anchor]) * self.stride[anchor]
        wh = (2 * s[:, 2:]) ** 2 * self.anchor[anchor]
        iou, ciou = complete_iou(xy, wh, truth[row, 2:4], truth[row, 4:6])
        objectness = torch.zeros(raw.shape[:2])
        objectness.index_put_((image, anchor), iou.detach().clamp(0))
        classes = F.one_hot(truth[row, 1].long(), self.width - 5).float()
        total = 5 * (1 - ciou).sum()
        total += F.binary_cross_entropy_with_logits(raw[..., 4], objectness, reduction="sum")
        total += F.binary_cross_entropy_with_logits(positive[:, 5:], classes, reduction="sum")
        return total / max(len(row), 1)


class Decoded(nn.Module):
    """The detector with its decoding, as it is exported: [batch, 3, size, size] to YOLOv5's [batch, anchors, 15]."""

    def __init__(self, detector: DetectionDecoder) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> Tensor:
        return self.detector.decode(self.detector(images))


class Classifier(nn.Sequential):
    """A small convolutional classifier of 32 x 32 crops."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 48, 64)) -> None:
        w1, w2, w3, w4 = widths
        body = [ConvBlock(3, w1), ConvBlock(w1, w2, 3, 2), ConvBlock(w2, w2), ConvBlock(w2, w3, 3, 2)]
        body += [ConvBlock(w3, w3), ConvBlock(w3, w4, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*body, nn.Dropout(0.1), nn.Linear(w4, len(data.NAMES)))


def complete_iou(xy: Tensor, wh: Tensor, true_xy: Tensor, true_wh: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and CIoU (Zheng et al., 2020) of n boxes with n others, given as centres and sizes."""
    low, high, true_low, true_high = xy - wh / 2, xy + wh / 2, true_xy - true_wh / 2, true_xy + true_wh / 2
    inter = (torch.minimum(high, true_high) - torch.maximum(low, true_low)).clamp(0).prod(1)
    iou = inter / (wh.prod(1) + true_wh.prod(1) - inter)
    diagonal = (torch.maximum(high, true_high) - torch.minimum(low, true_low)).square().sum(1)
    shape = 4 / torch.pi**2 * (torch.atan(true_wh[:, 0] / true_wh[:, 1]) - torch.atan(wh[:, 0] / wh[:, 1])) ** 2
    weight = (shape / (1 - iou + shape + 1e-9)).detach()
    return iou, iou - (xy - true_xy).square().sum(1) / diagonal - weight * shape
