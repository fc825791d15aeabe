// Pixels as a page shows them.

const QUALITY = 0.8; // of small pictures, as JPEGs

// Draws an image with three bytes for each pixel.
export function drawn({ data, width, height }, canvas) {
  const pixels = new ImageData(width, height);
  for (let from = 0, to = 0; from < data.length; from += 3, to += 4) {
    pixels.data[to] = data[from];
    pixels.data[to + 1] = data[from + 1];
    pixels.data[to + 2] = data[from + 2];
    pixels.data[to + 3] = 255;
  }
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// Returns an image no larger than `most` pixels as an element. A page with a thousand canvases
// becomes slow, one with as many pictures does not.
export function thumbnail(image, most) {
  const whole = drawn(image, document.createElement("canvas"));
  const small = document.createElement("canvas");
  const scale = Math.min(1, most / Math.max(image.width, image.height));
  small.width = Math.max(1, Math.round(image.width * scale));
  small.height = Math.max(1, Math.round(image.height * scale));
  small.getContext("2d").drawImage(whole, 0, 0, small.width, small.height);
  const made = document.createElement("img");
  made.alt = "";
  made.src = small.toDataURL("image/jpeg", QUALITY);
  return made;
}
