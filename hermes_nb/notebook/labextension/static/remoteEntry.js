/* The front end's half of hermes_nb: the agent in the kernel edits the notebook that is open here.
 *
 * A module-federation container written by hand: no node, no bundler. JupyterLab hands it the share
 * scope, from which it takes the application's own copies of the libraries. It loads this file as a
 * classic script. The others are modules beside it, at addresses that end as this one's does: a
 * browser keeps them for a year, so new ones need new addresses. Therefore none of them imports
 * another: they are handed what they need.
 */
(() => {
  const HERE = document.currentScript.src;
  const TOOLS = ['cells', 'diff', 'dom', 'overlay']; // handed to the parts, by name
  // Each has `start(given)`, in this order, whose result bridge.js describes. It is in `given.parts`.
  const PARTS = ['cells', 'edits', 'prompts', 'turns', 'question', 'side', 'changes', 'failed'];
  let scope;

  const shared = async name => {
    const versions = Object.values(scope[name] ?? {});
    if (!versions.length) throw new Error(`hermes-nb: ${name} is not shared by this application`);
    return (await (versions.find(v => v.loaded) ?? versions[0]).get())();
  };

  const at = file => new URL(`./${file}${new URL(HERE).search}`, HERE).href;
  const part = name => import(at(`${name}.js`));

  // Ones that cannot be had leave the page plain.
  const styles = () =>
    new Promise(done => {
      const link = document.createElement('link');
      Object.assign(link, { rel: 'stylesheet', href: at('style.css'), onload: done, onerror: done });
      document.head.append(link);
    });

  const activate = async (app, tracker, editors, palette, registry) => {
    const names = ['bridge', ...TOOLS, ...PARTS];
    // Settings that cannot be had are no reason to do without the rest.
    const chosen = registry?.load('hermes-nb:plugin').catch(console.warn);
    const [settings, , ...loaded] = await Promise.all([chosen, styles(), ...names.map(part)]);
    const files = Object.fromEntries(names.map((name, i) => [name, loaded[i]]));
    const given = { app, editors, palette, parts: {}, settings, shared, tracker };
    for (const name of TOOLS) given[name] = files[name];
    for (const name of PARTS) given.parts[name] = await files[name].start(given);
    files.bridge.connect(given);
  };

  (window._JUPYTERLAB ??= {})['hermes-nb'] = {
    init: given => {
      scope = given;
    },
    get: async () => {
      const names = ['notebook', 'codemirror', 'apputils', 'settingregistry'];
      const [notebook, codemirror, apputils, settingregistry] = await Promise.all(
        names.map(name => shared(`@jupyterlab/${name}`))
      );
      const plugin = {
        id: 'hermes-nb:plugin',
        autoStart: true,
        requires: [notebook.INotebookTracker, codemirror.IEditorExtensionRegistry],
        optional: [apputils.ICommandPalette, settingregistry.ISettingRegistry],
        activate
      };
      return () => ({ __esModule: true, default: plugin });
    }
  };
})();
