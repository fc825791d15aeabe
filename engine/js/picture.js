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

// Returns the address of an image no larger than `most` pixels, for an element. A page with a
// thousand canvases becomes slow, one with as many pictures does not.
export function smallAddress(image, most) {
  const whole = drawn(image, document.createElement("canvas"));
  const small = Object.assign(document.createElement("canvas"), within(image, most));
  small.getContext("2d").drawImage(whole, 0, 0, small.width, small.height);
  return small.toDataURL("image/jpeg", QUALITY);
}

// Returns the file of an image no larger than `most` pixels, also in a worker.
// image: with four bytes for each pixel, as `decode` of index.js gives it.
export async function smallFile({ data, width, height }, most) {
  const whole = new OffscreenCanvas(width, height);
  const pixels = new Uint8ClampedArray(data.buffer, data.byteOffset, data.length);
  whole.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  const size = within({ width, height }, most);
  const small = new OffscreenCanvas(size.width, size.height);
  const context = small.getContext("2d");
  context.fillStyle = "white"; // behind what is transparent
  context.fillRect(0, 0, size.width, size.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(whole, 0, 0, size.width, size.height);
  return small.convertToBlob({ type: "image/jpeg", quality: QUALITY });
}

function within({ width, height }, most) {
  const scale = Math.min(1, most / Math.max(width, height));
  const side = (whole) => Math.max(1, Math.round(whole * scale));
  return { width: side(width), height: side(height) };
}
