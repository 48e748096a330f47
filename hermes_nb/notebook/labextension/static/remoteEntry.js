/* The front end's half of hermes_nb: the agent in the kernel edits the notebook that is open here.
 *
 * A module-federation container written by hand. JupyterLab loads this file as a classic script and
 * hands it the share scope, with the application's own copies of the libraries. Browsers cache the
 * other files for a year, so their addresses end as this one's does, and none imports another.
 */
(() => {
  const HERE = document.currentScript.src;
  const TOOLS = ['cells', 'diff', 'dom', 'overlay']; // handed to the parts, by name
  // Each has `start(given)`, in this order; bridge.js says what comes of it, into `given.parts`.
  const PARTS = [
    ...['cells', 'edits', 'prompts', 'turns', 'question', 'composer', 'side', 'changes', 'failed'],
    'ways'
  ];
  const LIBRARIES = {
    '@codemirror': 'language state view',
    '@jupyterlab':
      'apputils codemirror completer notebook outputarea rendermime services settingregistry ' +
      'ui-components',
    '@lezer': 'highlight',
    '@lumino': 'widgets'
  };
  const libraries = {}; // by their names
  let scope;

  const take = async (from, name) => {
    const versions = Object.values(scope[`${from}/${name}`] ?? {});
    if (!versions.length) throw new Error(`hermes-nb: ${name} is not shared by this application`);
    libraries[name.replace('-c', 'C')] = (await (versions.find(v => v.loaded) ?? versions[0]).get())();
  };

  const at = file => new URL(`./${file}${new URL(HERE).search}`, HERE).href;

  const activate = async (app, tracker, editors, palette, registry) => {
    const styles = { rel: 'stylesheet', href: at('style.css') };
    document.head.append(Object.assign(document.createElement('link'), styles));
    const names = ['bridge', ...TOOLS, ...PARTS];
    // Settings that cannot be had are no reason to do without the rest.
    const chosen = registry?.load('hermes-nb:plugin').catch(console.warn);
    const [settings, ...loaded] = await Promise.all([chosen, ...names.map(n => import(at(`${n}.js`)))]);
    const files = Object.fromEntries(names.map((name, i) => [name, loaded[i]]));
    const given = { app, editors, libraries, palette, parts: {}, settings, tracker };
    for (const name of TOOLS) given[name] = files[name];
    for (const name of PARTS) given.parts[name] = await files[name].start(given);
    files.bridge.connect(given);
  };

  (window._JUPYTERLAB ??= {})['hermes-nb'] = {
    init: given => {
      scope = given;
    },
    get: async () => {
      const all = ([from, names]) => names.split(' ').map(name => take(from, name));
      const launcher = take('@jupyterlab', 'launcher').catch(() => null); // Notebook 7 has none
      await Promise.all([...Object.entries(LIBRARIES).flatMap(all), launcher]);
      const { apputils, codemirror, notebook, settingregistry } = libraries;
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
