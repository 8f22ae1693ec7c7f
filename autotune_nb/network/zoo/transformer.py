"""Transformers: ViT-B/16 (Dosovitskiy et al., 2020), encoder of BERT-base (Devlin et al., 2018)."""

from __future__ import annotations

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan
from autotune_nb.network.zoo.token_plan import TokenPlan

WIDTH, HIDDEN, HEADS, LAYERS = 768, 3072, 12, 12
SEQUENCE, VOCABULARY, POSITIONS = 128, 30522, 512


def build_vit(options: Options) -> Plan:
    """Build ViT-B/16: it normalises before each half of a layer."""
    plan = TokenPlan()
    image = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    patches = plan.conv(image, "patches", WIDTH, 16, stride=16, bias=True)
    x = plan.prepend(plan.tokens(patches), "class")
    x = plan.position(x, "position", x.shape[1])
    for layer in range(LAYERS):
        name = f"layer{layer}"
        y = plan.layer_norm(x, f"{name}_norm1", epsilon=1e-6)
        x = plan.add(x, plan.attention(y, f"{name}_attention", HEADS))
        y = plan.layer_norm(x, f"{name}_norm2", epsilon=1e-6)
        x = plan.add(x, plan.feed_forward(y, f"{name}_mlp", HIDDEN))
    x = plan.first(plan.layer_norm(x, "norm", epsilon=1e-6))
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


def build_bert(options: Options) -> Plan:
    """Build BERT-base without its pooler, for 128 tokens that all attend to each other."""
    plan = TokenPlan()
    shape = (options.batch_size, SEQUENCE)
    words = plan.indices(shape, VOCABULARY, "input_ids")
    kinds = plan.indices(shape, 2, "token_type_ids")
    x = plan.add(
        plan.embedding(words, "word", VOCABULARY, WIDTH), plan.embedding(kinds, "type", 2, WIDTH)
    )
    x = plan.layer_norm(plan.position(x, "position", POSITIONS), "norm", epsilon=1e-12)
    for layer in range(LAYERS):
        name = f"layer{layer}"
        y = plan.add(x, plan.attention(x, f"{name}_attention", HEADS))
        x = plan.layer_norm(y, f"{name}_norm1", epsilon=1e-12)
        y = plan.add(x, plan.feed_forward(x, f"{name}_mlp", HIDDEN))
        x = plan.layer_norm(y, f"{name}_norm2", epsilon=1e-12)
    plan.finish(x)
    return plan


ENTRIES = (
    Entry(name="vit-b-16", build=build_vit, aliases=("vit", "vit_base_patch16_224")),
    Entry(
        name="bert-base",
        build=build_bert,
        layouts=(),
        image_size=None,
        aliases=("bert", "bert-base-uncased"),
    ),
)
