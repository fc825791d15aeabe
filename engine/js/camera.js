// A page's camera: its pictures as pixels, and a button that takes them while it is held.

const BETWEEN_PHOTOS = 200; // ms, while the button is held
const MOST_SIDE = 640; // pixels, of a picture before it is prepared

// Returns the stream, which plays in the video element.
export async function openCamera(video) {
  if (!navigator.mediaDevices) {
    throw new Error("browsers give a page one only over https, from localhost, or from a file");
  }
  // Of a phone, not the one on its face.
  const wanted = { video: { facingMode: "environment" } };
  const camera = await navigator.mediaDevices.getUserMedia(wanted);
  const [track] = camera.getVideoTracks();
  try {
    if (track) {
      video.srcObject = camera;
      await video.play();
    }
    if (track?.readyState !== "live") throw new Error("it gives no pictures");
  } catch (error) {
    closeCamera(camera);
    throw error;
  }
  return camera;
}

export function closeCamera(camera) {
  for (const track of camera.getTracks()) track.stop();
}

// Returns what the video element shows, as pixels; null if it shows nothing.
const canvas = globalThis.document?.createElement("canvas"); // a worker has none
export function frameOf(video) {
  const { videoWidth, videoHeight } = video;
  if (!videoWidth) return null;
  const scale = Math.min(1, MOST_SIDE / Math.max(videoWidth, videoHeight));
  const width = Math.max(1, Math.round(videoWidth * scale));
  const height = Math.max(1, Math.round(videoHeight * scale));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(video, 0, 0, width, height);
  return { data: context.getImageData(0, 0, width, height).data, width, height };
}

// Calls `take` when a button is pressed, and again and again as long as it is held.
export function holds(button, take) {
  let timer = 0;
  const begin = () => {
    if (timer) return;
    take();
    timer = setInterval(take, BETWEEN_PHOTOS);
  };
  const end = () => {
    clearInterval(timer);
    timer = 0;
  };
  const isKey = ({ key }) => key === " " || key === "Enter";
  button.addEventListener("pointerdown", (event) => {
    if (event.button === 0) begin();
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave", "blur"]) {
    button.addEventListener(kind, end);
  }
  button.addEventListener("keydown", (event) => {
    if (isKey(event)) {
      event.preventDefault();
      begin();
    }
  });
  button.addEventListener("keyup", (event) => {
    if (isKey(event)) end();
  });
  button.addEventListener("click", ({ detail, pointerType }) => {
    if (!detail && !pointerType) take(); // of a screen reader, without a pointer or a key
  });
  button.addEventListener("contextmenu", (event) => event.preventDefault());
}
