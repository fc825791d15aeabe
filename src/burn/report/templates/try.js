
// The panel of the page: a photograph, its classes and milliseconds.
{
  const panel = document.querySelector("#try .panel");
  const file = panel.querySelector("input");
  const drop = panel.querySelector(".drop");
  const said = panel.querySelector("[role=status]");
  const list = panel.querySelector("ol");
  const canvas = panel.querySelector("canvas");
  const MOST_CLASSES = 5;

  const embedded = (id) => {
    const text = atob(document.getElementById(id).textContent.trim());
    return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  };
  const say = (text, fault = false) => {
    said.textContent = text;
    said.classList.toggle("fault", fault);
  };

  const draw = ({ data, width, height }) => {
    canvas.width = width;
    canvas.height = height;
    const pixels = new ImageData(width, height);
    for (let from = 0, to = 0; from < data.length; from += 3, to += 4) {
      pixels.data.set([data[from], data[from + 1], data[from + 2], 255], to);
    }
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    canvas.hidden = false;
  };

  const show = (classes) => {
    list.replaceChildren(
      ...classes.slice(0, MOST_CLASSES).map(({ name, percent }) => {
        const row = document.createElement("li");
        row.style.setProperty("--v", percent.toFixed(2));
        const label = document.createElement("span");
        label.textContent = name;
        const bar = document.createElement("i");
        const number = document.createElement("b");
        number.textContent = `${percent.toFixed(1)} %`;
        row.append(label, bar, number);
        return row;
      }),
    );
  };

  const classify = async (model, photo) => {
    panel.ariaBusy = "true";
    say("Reading the photograph …");
    list.replaceChildren();
    canvas.hidden = true;
    try {
      const pixels = await decode(photo);
      draw(prepare(pixels, model.imageSize));
      model.run(pixels); // the first run also compiles the module
      const { classes, milliseconds, output } = model.run(pixels);
      show(classes);
      const gives = classes.length ? "" : ` It has no classifier: it gave ${output.length} features.`;
      say(`${photo.name}: ${milliseconds.toFixed(1)} ms for the network, in this browser.${gives}`);
    } catch (error) {
      say(error.message, true);
    }
    panel.ariaBusy = "false";
  };

  try {
    const model = await load(embedded("try-model"), { wasm: embedded("try-engine") });
    drop.hidden = false;
    say("Nothing leaves this page.");
    file.addEventListener("change", () => {
      if (file.files.length) classify(model, file.files[0]);
    });
    for (const kind of ["dragover", "drop"]) {
      panel.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.toggle("over", kind === "dragover");
        const photo = kind === "drop" && event.dataTransfer.files[0];
        if (photo) classify(model, photo);
      });
    }
    panel.addEventListener("dragleave", () => drop.classList.remove("over"));
  } catch (error) {
    say(`The model of this page cannot run here: ${error.message}`, true);
  }
}
