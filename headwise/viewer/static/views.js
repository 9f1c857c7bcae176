// The views of the page, in the order of the tabs and of the number keys. A view is known by its `id`.

import { CompareView } from "./views/compare.js";
import { FlowView } from "./views/flow.js";
import { HeadView } from "./views/head.js";
import { ImageView } from "./views/image.js";
import { LinesView } from "./views/lines.js";
import { MapsView } from "./views/maps.js";
import { ModelView } from "./views/model.js";
import { NeuronView } from "./views/neuron.js";
import { SurfaceView } from "./views/surface.js";
import { TextView } from "./views/text.js";

// The views of a small output in a notebook, which has no tabs and shows one of these.
export const SMALL = [MapsView, LinesView];

export const VIEWS = [ModelView, HeadView, LinesView, TextView, NeuronView, SurfaceView, CompareView, FlowView, ImageView];
