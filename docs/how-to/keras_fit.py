import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel

keras.utils.set_random_seed(0)  # before initialize(), which draws one otherwise
keras.distribution.initialize()
devices = keras.distribution.list_devices()
mesh = DeviceMesh((len(devices) // 2, 2), ("batch", "model"), devices)
layouts = LayoutMap(mesh)
layouts[".*/hidden/kernel"] = (None, "model")
layouts[".*/hidden/bias"] = ("model",)
layouts[".*/out/kernel"] = ("model", None)
distribution = ModelParallel(layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False)
keras.distribution.set_distribution(distribution)

model = keras.Sequential(
    [
        keras.Input((16,)),
        keras.layers.Dense(64, "relu", name="hidden"),
        keras.layers.Dense(2, name="out"),
    ],
    name="net",
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])

ROWS, BATCH = 2048, 256
x = np.random.default_rng(0).normal(size=(ROWS, 16)).astype(np.float32)
y = (x[:, :4].sum(axis=1) > 0).astype(np.int32)
# The rows of this process: processes that hold parts of the same copy of the model have the same.
parts = min(distribution.num_model_replicas, distribution.num_processes)
own = np.arange(ROWS).reshape(-1, parts, BATCH // parts)[:, distribution.data_shard_id].ravel()

history = model.fit(
    x[own], y[own], batch_size=BATCH // parts, epochs=3, shuffle=False, verbose=0
).history
accuracy = model.evaluate(x[own], y[own], batch_size=BATCH // parts, verbose=0)[1]
losses = " ".join(f"{each:.4f}" for each in history["loss"])
print(f"part {distribution.data_shard_id} of {parts}: losses {losses}, then {accuracy:.3f} right")
