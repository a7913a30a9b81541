//! Where parts of traces go, if they go anywhere.

#[cfg(feature = "otel")]
pub(super) use self::told::SpansComponent;
#[cfg(not(feature = "otel"))]
pub(super) use self::untold::SpansComponent;

#[cfg(feature = "otel")]
mod told {
    use guildhall_actors::telemetry::span;

    use crate::{
        logging::Secrets,
        otel::{EndpointError, Exporter},
        settings::Settings,
    };

    /// The way to a collector, if the settings name one.
    #[derive(Debug)]
    pub(crate) struct SpansComponent(Option<Exporter>);

    impl SpansComponent {
        /// None of the secrets is sent.
        pub(crate) fn start(settings: &Settings, secrets: Secrets) -> Result<Self, EndpointError> {
            let exporter = Exporter::start(&settings.telemetry, secrets)?;
            if let Some(exporter) = &exporter
                && !span::listen(exporter.listener())
            {
                tracing::warn!("spans go elsewhere already: this process has started a daemon before");
            }
            Ok(Self(exporter))
        }

        /// Tells what waits.
        pub(crate) async fn finish(self) {
            if let Some(exporter) = self.0 {
                exporter.finish().await;
            }
        }
    }
}

#[cfg(not(feature = "otel"))]
mod untold {
    use std::convert::Infallible;

    use crate::{logging::Secrets, settings::Settings};

    /// Nowhere: the settings have refused to name a collector.
    #[derive(Debug)]
    pub(crate) struct SpansComponent;

    impl SpansComponent {
        /// A program that is built otherwise may fail here.
        pub(crate) fn start(_: &Settings, _: Secrets) -> Result<Self, Infallible> {
            Ok(Self)
        }

        pub(crate) async fn finish(self) {}
    }
}
