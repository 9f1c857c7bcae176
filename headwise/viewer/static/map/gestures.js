// Gestures of mouse, finger and wheel on a map: point, tap, pan, zoom, draw a frame to zoom to.

const STILL = 4; // a movement of fewer pixels is a tap

// on: { point(at), tap(at), double(at), pan(by) , zoom(factor, at), frame(from, to), framed(from, to), pans(),
// zoomsOut() }, where `at`, `from`, `to` and `by` are { x, y } in pixels of the element. frame(null)
// removes the frame.
export function listen(element, on) {
  const fingers = new Map();
  let start = null; // where a drag began
  let how = null; // "tap" until it moves, then "pan", "frame" or "point"; "pinch" with two fingers
  const at = ({ offsetX: x, offsetY: y }) => ({ x, y });
  const end = () => {
    if (how === "frame") on.frame(null);
    [start, how] = [null, fingers.size ? "pinch" : null];
    element.dataset.drag = "";
  };

  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    fingers.set(event.pointerId, at(event));
    if (fingers.size > 1) {
      how = "pinch";
      return;
    }
    on.point(at(event));
    [start, how] = [at(event), "tap"];
    element.setPointerCapture(event.pointerId);
  });

  element.addEventListener("pointermove", (event) => {
    const [now, before] = [at(event), fingers.get(event.pointerId)];
    if (!before) return on.point(now);
    if (how === "pinch") pinch(event.pointerId, now);
    fingers.set(event.pointerId, now);
    if (how === "tap" && distance(now, start) > STILL) {
      how = event.shiftKey ? "frame" : on.pans() ? "pan" : "point";
      element.dataset.drag = how;
      if (how === "pan") on.pan({ x: now.x - start.x, y: now.y - start.y });
    } else if (how === "pan") on.pan({ x: now.x - before.x, y: now.y - before.y });
    if (how === "frame") on.frame(start, now);
    if (how === "point") on.point(now);
  });

  function pinch(finger, now) {
    const before = fingers.get(finger);
    const other = [...fingers.values()].find((place) => place !== before);
    if (!other) return;
    const middle = (one) => ({ x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 });
    const [from, to] = [middle(before), middle(now)];
    on.pan({ x: to.x - from.x, y: to.y - from.y });
    on.zoom(distance(now, other) / Math.max(1, distance(before, other)), to);
  }

  element.addEventListener("pointerup", (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (how === "tap") on.tap(start);
    if (how === "frame") on.framed(start, at(event));
    end();
  });
  element.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    end();
  });
  element.addEventListener("dblclick", (event) => on.double(at(event)));
  element.addEventListener(
    "wheel",
    (event) => {
      if (event.deltaY > 0 && !event.ctrlKey && !on.zoomsOut()) return; // fully zoomed out: the page may scroll
      event.preventDefault();
      const pixels = event.deltaMode ? event.deltaY * 16 : event.deltaY;
      on.zoom(Math.exp(-pixels / (event.ctrlKey ? 100 : 400)), at(event)); // ctrl: a pinch on a touchpad
      on.point(at(event));
    },
    { passive: false },
  );
}

const distance = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);
