from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny  # noqa: F401 - one thread
from burn.data.sources import open_source
from burn.errors import UserError
from burn.evaluation.classifier import LinearConfig
from burn.evaluation.protocols import FeatureCache, KnnConfig, check_sources, run_knn, run_linear
from burn.evaluation.subject import Subject, load_model


def class_folders(path: Path, names: tuple[str, ...]) -> Path:
    for number, name in enumerate(names):
        (path / name).mkdir(parents=True)
        for i in range(6):
            pixels = np.full((20, 24, 3), 40 * number + i, np.uint8)
            Image.fromarray(pixels).save(path / name / f"{i}.png")
    return path


@pytest.fixture
def subject(teacher: Path, tmp_path: Path) -> Subject:
    name, backbone, views = load_model(str(teacher), fresh=False, seed=0)
    photos = str(class_folders(tmp_path / "photos", ("black", "grey", "white")))
    train, test = open_source(photos), open_source(photos)
    return Subject(name, str(teacher), backbone, views, train, test, seed=0, workers=0)


def test_uniform_grey_levels_are_told_apart(subject: Subject):
    features = FeatureCache(subject)
    (knn,) = run_knn(subject, features, KnnConfig(k=1))
    assert (knn.protocol, knn.metric, knn.value) == ("knn", "top1", 100)
    top1, top5 = run_linear(subject, features, LinearConfig(epochs=3, lr=0.1, augment="none"))
    assert top5.value == 100  # three classes are fewer than five
    assert 0 <= top1.value <= 100
    assert top1.settings == {"epochs": 3, "lr": 0.1, "batch_size": 256, "augment": "none"}


def test_the_papers_linear_augments_and_leaves_the_backbone_as_it_was(subject: Subject):
    before = {k: v.clone() for k, v in subject.backbone.state_dict().items()}
    top1, _ = run_linear(subject, FeatureCache(subject), LinearConfig(epochs=2))
    assert top1.settings["augment"] == "crop"
    after = subject.backbone.state_dict()
    assert all((after[k] == before[k]).all() for k in before)
    assert not subject.backbone.training


def test_linear_repeats_itself_for_a_seed(subject: Subject):
    config = LinearConfig(epochs=2)
    first, second = (run_linear(subject, FeatureCache(subject), config) for _ in range(2))
    assert [r.value for r in first] == [r.value for r in second]


def test_unreadable_images_are_left_out_and_named(subject: Subject):
    photos = Path(subject.train.name)
    (photos / "grey" / "2.png").write_bytes(b"")
    features = FeatureCache(subject)
    assert len(features("train").values) == 17
    assert features.unreadable == [str(photos / "grey" / "2.png")]


def test_classes_that_do_not_match_are_refused(tmp_path: Path):
    train = open_source(str(class_folders(tmp_path / "a", ("cat", "dog"))))
    more = open_source(str(class_folders(tmp_path / "b", ("cat", "emu"))))
    fewer = open_source(str(class_folders(tmp_path / "c", ("cat", "dog", "emu"))))
    with pytest.raises(UserError, match=r"has classes that .* lacks: emu"):
        check_sources(train, more)
    with pytest.raises(UserError, match="lacks classes of"):
        check_sources(fewer, train)
    check_sources(train, train)
